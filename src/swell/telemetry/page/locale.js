// A browser started in a POSIX locale reports a language that Intl refuses, and uPlot asks Intl when it is loaded.
try { new Intl.NumberFormat(navigator.language); } catch { Object.defineProperty(navigator, "language", { get: () => "en-US" }); }
