// Package logadapt lets libraries that have their own loggers write to log/slog.
//
// It owns the mapping of levels, names and arguments. It also lowers the levels of some lines of the Raft library. It
// has no goroutines. Every logger is safe for concurrent use if its slog.Handler is.
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

// HCLog returns an hclog logger that writes to l. The name of the hclog logger becomes the attribute "logger". The
// level of l decides which records are written. SetLevel has no effect.
func HCLog(l *slog.Logger) hclog.Logger { return &hcLogger{base: l, out: l} }

type hcLogger struct {
	base    *slog.Logger // l with the implied arguments, without a name
	out     *slog.Logger // base and the name
	name    string
	implied []any
	limiter *limiter // nil = every line keeps its level
}

func (h *hcLogger) Log(level hclog.Level, msg string, args ...any) {
	if level == hclog.Off {
		return
	}
	ctx, to := context.Background(), h.limiter.level(fromHCLog(level), msg, args)
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
	return &hcLogger{base: h.base.With(plain(args)...), out: h.out.With(plain(args)...), name: h.name,
		implied: implied, limiter: h.limiter}
}

func (h *hcLogger) Named(name string) hclog.Logger {
	if h.name != "" {
		name = h.name + "." + name
	}
	return h.ResetNamed(name)
}

func (h *hcLogger) ResetNamed(name string) hclog.Logger {
	n := &hcLogger{base: h.base, out: h.base, name: name, implied: h.implied, limiter: h.limiter}
	if name != "" {
		n.out = h.base.With("logger", name)
	}
	return n
}

// SetLevel does nothing, which hclog allows: the level belongs to the slog.Handler.
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

// plain converts the arguments of an hclog call to arguments of log/slog. The arguments alternate between keys and
// values. Values of hclog's own types become text. If the number of arguments is odd, the last one is a value and gets
// the key "extra".
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

// formatted returns a format string with its arguments, as hclog.Fmt collects them.
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
