package api_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/quorate/quorate/api"
)

// letters is a merger whose tokens are sets of letters; "?" cannot be read.
type letters struct{}

func (letters) MergeSessions(a, b string) (string, bool) {
	if strings.Contains(a+b, "?") {
		return "", false
	}
	for _, r := range b {
		if !strings.ContainsRune(a, r) {
			a += string(r)
		}
	}
	return a, true
}

func TestSessions_GrowWithObservedWrites(t *testing.T) {
	s, app := api.NewSessions(letters{}), api.App{ID: "a"}
	if got := s.Begin(app, "", ""); got != "" {
		t.Errorf("%q at first", got)
	}
	s.End(app, "", "", "w")
	if got := s.Begin(app, "", "g"); got != "gw" {
		t.Errorf("the given token and the own: %q", got)
	}
	if got := s.Begin(app, "", "?"); got != "?" {
		t.Errorf("a token that cannot be read passes as it is: %q", got)
	}
	s.Inbound(app, "", "x")
	if got := s.Token(app, ""); got != "wx" {
		t.Errorf("%q", got)
	}
	s.End(app, "", "wx", "w") // the store removed a part
	if got := s.Token(app, ""); got != "w" {
		t.Errorf("%q", got)
	}
	if got := s.Token(api.App{ID: "b"}, ""); got != "" {
		t.Errorf("another application has seen %q", got)
	}
}

func TestSessions_RequestWaitsForItsTraceOnly(t *testing.T) {
	s, app := api.NewSessions(letters{}), api.App{ID: "a"}
	for i, token := range []string{"x", "y"} {
		trace := fmt.Sprint("t", i)
		s.Inbound(app, trace, token)
		s.Follow(app, trace, token)
	}
	for trace, want := range map[string]string{"t0": "x", "t1": "y", "t9": "xy", "": "xy"} {
		if got := s.Token(app, trace); got != want {
			t.Errorf("%q: %q", trace, got)
		}
	}
	s.End(app, "t0", "x", "xz")
	if got := s.Token(app, "t0") + " " + s.Token(app, "t1") + " " + s.Token(app, ""); got != "xz y xyz" {
		t.Errorf("%q", got)
	}
	for i := range 5000 {
		s.Follow(app, fmt.Sprint("u", i), "u")
	}
	if got := s.Token(app, "t0"); got != "xyz" {
		t.Errorf("a forgotten trace has %q, the application's session was expected", got)
	}
}

func TestSessions_WithoutMergerNothingIsStored(t *testing.T) {
	s, app := api.NewSessions(nil), api.App{ID: "a"}
	s.End(app, "t", "", "x")
	s.Inbound(app, "t", "x")
	s.Follow(app, "t", "x")
	if got := s.Begin(app, "t", "given"); got != "given" {
		t.Errorf("%q", got)
	}
}

func TestTraceID_RequiresValidTraceparent(t *testing.T) {
	const ok = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for text, want := range map[string]string{ok: ok[3:35], "": "", ok[:54]: "", "ff" + ok[2:]: "",
		strings.ToUpper(ok): "", "00-" + strings.Repeat("0", 32) + ok[35:]: ""} {
		if got := api.TraceID(text); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
}
