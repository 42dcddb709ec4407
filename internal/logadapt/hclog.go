// Package logadapt lets libraries that bring their own logger write to log/slog.
//
// It owns the mapping of levels, names and arguments. It must never decide what is
// worth logging, but for the lines of Raft, whose levels it corrects. It has no goroutines; every logger is safe for concurrent use, as far
// as the slog.Handler behind it is.
package logadapt

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// LevelTrace is the slog level of hclog's Trace, below slog.LevelDebug.
const LevelTrace = slog.LevelDebug - 4

// HCLog returns a logger for libraries that log through hclog. Names become the
// attribute "logger". The level is that of l: SetLevel changes nothing.
func HCLog(l *slog.Logger) hclog.Logger { return &hcLogger{base: l, out: l} }

type hcLogger struct {
	base    *slog.Logger // l with the implied arguments, without a name
	out     *slog.Logger // base and the name
	name    string
	implied []any
	calm    *calm // nil = every line keeps its level
}

func (h *hcLogger) Log(level hclog.Level, msg string, args ...any) {
	if level == hclog.Off {
		return
	}
	ctx, to := context.Background(), h.calm.level(fromHCLog(level), msg, args)
	if h.out.Enabled(ctx, to) {
		h.out.Log(ctx, to, msg, plain(args)...)
	}
}

func (h *hcLogger) Trace(msg string, args ...any) { h.Log(hclog.Trace, msg, args...) }
func (h *hcLogger) Debug(msg string, args ...any) { h.Log(hclog.Debug, msg, args...) }
func (h *hcLogger) Info(msg string, args ...any)  { h.Log(hclog.Info, msg, args...) }
func (h *hcLogger) Warn(msg string, args ...any)  { h.Log(hclog.Warn, msg, args...) }
func (h *hcLogger) Error(msg string, args ...any) { h.Log(hclog.Error, msg, args...) }

func (h *hcLogger) IsTrace() bool { return h.enabled(LevelTrace) }
func (h *hcLogger) IsDebug() bool { return h.enabled(slog.LevelDebug) }
func (h *hcLogger) IsInfo() bool  { return h.enabled(slog.LevelInfo) }
func (h *hcLogger) IsWarn() bool  { return h.enabled(slog.LevelWarn) }
func (h *hcLogger) IsError() bool { return h.enabled(slog.LevelError) }

func (h *hcLogger) enabled(l slog.Level) bool { return h.out.Enabled(context.Background(), l) }

func (h *hcLogger) ImpliedArgs() []any { return h.implied }
func (h *hcLogger) Name() string       { return h.name }

func (h *hcLogger) With(args ...any) hclog.Logger {
	implied := append(append([]any(nil), h.implied...), args...)
	return &hcLogger{base: h.base.With(plain(args)...), out: h.out.With(plain(args)...), name: h.name, implied: implied, calm: h.calm}
}

func (h *hcLogger) Named(name string) hclog.Logger {
	if h.name != "" {
		name = h.name + "." + name
	}
	return h.ResetNamed(name)
}

func (h *hcLogger) ResetNamed(name string) hclog.Logger {
	n := &hcLogger{base: h.base, out: h.base, name: name, implied: h.implied, calm: h.calm}
	if name != "" {
		n.out = h.base.With("logger", name)
	}
	return n
}

// SetLevel does nothing, as hclog allows: the level belongs to the slog.Handler.
func (h *hcLogger) SetLevel(hclog.Level) {}

func (h *hcLogger) GetLevel() hclog.Level {
	for _, l := range []hclog.Level{hclog.Trace, hclog.Debug, hclog.Info, hclog.Warn, hclog.Error} {
		if h.enabled(fromHCLog(l)) {
			return l
		}
	}
	return hclog.Off
}

func (h *hcLogger) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger { return Standard(h.out) }
func (h *hcLogger) StandardWriter(*hclog.StandardLoggerOptions) io.Writer   { return Writer(h.out) }

func fromHCLog(l hclog.Level) slog.Level {
	switch l {
	case hclog.Trace:
		return LevelTrace
	case hclog.Debug:
		return slog.LevelDebug
	case hclog.Warn:
		return slog.LevelWarn
	case hclog.Error:
		return slog.LevelError
	default:
		return slog.LevelInfo
	}
}

// plain rewrites the argument types that only hclog knows how to print, and gives a
// key to a value that has none.
func plain(args []any) []any {
	if len(args) == 0 {
		return nil
	}
	out := make([]any, 0, len(args)+1)
	if len(args)%2 == 1 {
		args = append(args[:len(args)-1:len(args)-1], "extra", args[len(args)-1])
	}
	for i := 0; i < len(args); i += 2 {
		out = append(out, fmt.Sprint(args[i]), plainValue(args[i+1]))
	}
	return out
}

func plainValue(v any) any {
	switch v := v.(type) {
	case hclog.Format:
		return formatted(v)
	case hclog.Hex:
		return fmt.Sprintf("0x%x", int(v))
	case hclog.Octal:
		return fmt.Sprintf("0%o", int(v))
	case hclog.Binary:
		return fmt.Sprintf("0b%b", int(v))
	case hclog.Quote:
		return fmt.Sprintf("%q", string(v))
	default:
		return v
	}
}

// formatted prints a format string and its arguments, as hclog.Fmt collects them.
func formatted(f hclog.Format) string {
	if len(f) == 0 {
		return ""
	}
	layout, ok := f[0].(string)
	if !ok {
		return fmt.Sprint(f...)
	}
	return fmt.Sprintf(layout, f[1:]...)
}
