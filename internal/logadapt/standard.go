package logadapt

import (
	"bytes"
	"context"
	"io"
	"log"
	"log/slog"
)

// Standard returns a logger for libraries that log through the log package. See Writer.
func Standard(l *slog.Logger) *log.Logger { return log.New(Writer(l), "", 0) }

// Writer returns a writer that logs each line as a record of l. A line may begin with its level in square brackets,
// as in "[WARN] memberlist: refuting a suspect message". Otherwise the level is info. Each Write must contain whole
// lines, as package log writes them.
func Writer(l *slog.Logger) io.Writer { return lineWriter{l} }

type lineWriter struct{ out *slog.Logger }

func (w lineWriter) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		level, msg := splitLevel(bytes.TrimSpace(line))
		if len(msg) > 0 {
			w.out.Log(context.Background(), level, string(msg))
		}
	}
	return len(p), nil
}

// splitLevel cuts a leading "[LEVEL]" off a line. Any other bracketed word is text.
func splitLevel(line []byte) (slog.Level, []byte) {
	word, rest, ok := bytes.Cut(bytes.TrimPrefix(line, []byte("[")), []byte("]"))
	if !ok || len(line) == 0 || line[0] != '[' {
		return slog.LevelInfo, line
	}
	rest = bytes.TrimSpace(rest)
	switch string(word) {
	case "TRACE":
		return LevelTrace, rest
	case "DEBUG":
		return slog.LevelDebug, rest
	case "INFO":
		return slog.LevelInfo, rest
	case "WARN", "WARNING":
		return slog.LevelWarn, rest
	case "ERR", "ERROR":
		return slog.LevelError, rest
	default:
		return slog.LevelInfo, line
	}
}
