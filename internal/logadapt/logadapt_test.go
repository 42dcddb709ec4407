package logadapt_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"

	"github.com/quorate/quorate/internal/logadapt"
)

// capture returns a logger at level and a function that returns what was logged, without times.
func capture(level slog.Level) (*slog.Logger, func() string) {
	var b bytes.Buffer
	h := slog.NewTextHandler(&b, &slog.HandlerOptions{Level: level,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})
	return slog.New(h), func() string { return strings.TrimSpace(b.String()) }
}

func TestHCLog_KeepsLevelNameAndArguments(t *testing.T) {
	for name, c := range map[string]struct {
		log  func(hclog.Logger)
		want string
	}{
		"trace is below debug": {func(l hclog.Logger) { l.Trace("m") }, `level=DEBUG-4 msg=m`},
		"debug":                {func(l hclog.Logger) { l.Debug("m", "a", 1) }, `level=DEBUG msg=m a=1`},
		"info":                 {func(l hclog.Logger) { l.Info("m") }, `level=INFO msg=m`},
		"warn": {func(l hclog.Logger) { l.Warn("m", "error", errors.New("x")) },
			`level=WARN msg=m error=x`},
		"error":            {func(l hclog.Logger) { l.Error("m") }, `level=ERROR msg=m`},
		"no level is info": {func(l hclog.Logger) { l.Log(hclog.NoLevel, "m") }, `level=INFO msg=m`},
		"off is silent":    {func(l hclog.Logger) { l.Log(hclog.Off, "m") }, ``},
		"name":             {func(l hclog.Logger) { l.Named("raft").Info("m") }, `level=INFO msg=m logger=raft`},
		"nested name": {func(l hclog.Logger) { l.Named("raft").Named("net").Info("m") },
			`level=INFO msg=m logger=raft.net`},
		"reset name": {func(l hclog.Logger) { l.Named("raft").ResetNamed("net").Info("m") },
			`level=INFO msg=m logger=net`},
		"name and arguments once": {func(l hclog.Logger) { l.With("g", 1).Named("raft").With("h", 2).Info("m") },
			`level=INFO msg=m g=1 logger=raft h=2`},
		"a value without a key": {func(l hclog.Logger) { l.Info("m", "a", 1, "left") },
			`level=INFO msg=m a=1 extra=left`},
		"a key that is no string": {func(l hclog.Logger) { l.Info("m", 7, 1) }, `level=INFO msg=m 7=1`},
		"format": {func(l hclog.Logger) { l.Info("m", "a", hclog.Fmt("%d-%d", 1, 2)) },
			`level=INFO msg=m a=1-2`},
		"numbers in other bases": {func(l hclog.Logger) {
			l.Info("m", "x", hclog.Hex(255), "o", hclog.Octal(8), "b",
				hclog.Binary(5))
		},
			`level=INFO msg=m x=0xff o=010 b=0b101`},
	} {
		t.Run(name, func(t *testing.T) {
			l, logged := capture(logadapt.LevelTrace)
			c.log(logadapt.HCLog(l))
			if diff := cmp.Diff(c.want, logged()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestHCLog_ReportsLevelOfLoggerBehind(t *testing.T) {
	l, logged := capture(slog.LevelWarn)
	h := logadapt.HCLog(l)
	if h.IsTrace() || h.IsDebug() || h.IsInfo() || !h.IsWarn() || !h.IsError() || h.GetLevel() != hclog.Warn {
		t.Errorf("level = %v", h.GetLevel())
	}
	h.SetLevel(hclog.Trace)
	h.Info("still below the level")
	if logged() != "" || h.GetLevel() != hclog.Warn {
		t.Error("a library changed the level of the process")
	}
}

func TestHCLog_HasNameAndImpliedArguments(t *testing.T) {
	l, _ := capture(slog.LevelInfo)
	parent := logadapt.HCLog(l).With("a", 1)
	child := parent.With("b", 2).Named("n")
	if diff := cmp.Diff([]any{"a", 1, "b", 2}, child.ImpliedArgs()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]any{"a", 1}, parent.ImpliedArgs()); diff != "" {
		t.Error("a child changed its parent:", diff)
	}
	if child.Name() != "n" || parent.Name() != "" {
		t.Errorf("names %q and %q", child.Name(), parent.Name())
	}
}

func TestStandard_KeepsLevelOfLine(t *testing.T) {
	for line, want := range map[string]string{
		"[DEBUG] memberlist: probing":  `level=DEBUG msg="memberlist: probing"`,
		"[TRACE] x":                    `level=DEBUG-4 msg=x`,
		"[INFO] x":                     `level=INFO msg=x`,
		"[WARN] x":                     `level=WARN msg=x`,
		"[ERR] memberlist: failed":     `level=ERROR msg="memberlist: failed"`,
		"[ERROR] x":                    `level=ERROR msg=x`,
		"plain":                        `level=INFO msg=plain`,
		"[::1]:80 refused":             `level=INFO msg="[::1]:80 refused"`,
		"[unclosed":                    `level=INFO msg=[unclosed`,
		"]odd":                         `level=INFO msg=]odd`,
		"":                             ``,
		"two\n[WARN] lines in a write": "level=INFO msg=two\nlevel=WARN msg=\"lines in a write\"",
	} {
		l, logged := capture(logadapt.LevelTrace)
		logadapt.Standard(l).Print(line)
		if diff := cmp.Diff(want, logged()); diff != "" {
			t.Errorf("%q: %s", line, diff)
		}
	}
}

func TestHCLog_StandardLogger(t *testing.T) {
	l, logged := capture(slog.LevelInfo)
	h := logadapt.HCLog(l).Named("raft")
	h.StandardLogger(nil).Print("[WARN] a")
	if _, err := h.StandardWriter(nil).Write([]byte("[DEBUG] below the level\n")); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(`level=WARN msg=a logger=raft`, logged()); diff != "" {
		t.Error(diff)
	}
}
