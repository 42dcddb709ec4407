package api_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/quorate/quorate/api"
)

// letters is a merger whose tokens are sets of letters; "?" cannot be read, and "!" does not exist.
type letters struct{}

func (l letters) AnswerSession(own, sent, got string) (string, bool) {
	return l.MergeSessions(own, strings.Map(func(r rune) rune {
		if r == '!' && strings.ContainsRune(sent, r) {
			return -1
		}
		return r
	}, got))
}

func (l letters) VerifySession(_ context.Context, own, given string) (string, error) {
	merged, _ := l.MergeSessions(own, strings.ReplaceAll(given, "!", ""))
	return merged, nil
}

func (letters) ShareSession(token, _ string) string { return token }

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
	s.End(app, "", "", "", "w")
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
	s.End(app, "", "", "wx", "w") // the store removed a part
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
	s.End(app, "t0", "", "x", "xz")
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

func TestSessions_DoNotAdoptWhatClientInvented(t *testing.T) {
	s, app := api.NewSessions(letters{}), api.App{ID: "a"}
	s.End(app, "", "", "", "w")
	sent := s.Begin(app, "", "!")
	if s.End(app, "", "!", sent, sent+"x"); s.Token(app, "") != "wx" {
		t.Errorf("after a request: %q", s.Token(app, ""))
	}
	verified, err := s.Verify(t.Context(), app, "", http.Header{"Quorate-Session": {"!y"}})
	if err != nil || verified != "wxy" {
		t.Errorf("the token for a call is %q, %v", verified, err)
	}
	if s.Token(app, "") != "wx" {
		t.Errorf("after a call: %q", s.Token(app, ""))
	}
}

func TestSessions_DropTokensThatCannotBeRead(t *testing.T) {
	s, app := api.NewSessions(letters{}), api.App{ID: "a"}
	s.Inbound(app, "t", "?")
	s.Follow(app, "t", "?")
	if got := s.Begin(app, "t", "") + s.Begin(app, "", ""); got != "" {
		t.Errorf("requests are sent with %q after a call with a token that cannot be read", got)
	}
	s.End(app, "", "", "", "?") // as if the cluster had changed since
	if s.Inbound(app, "", "x"); s.Token(app, "") != "x" {
		t.Errorf("after a call: %q", s.Token(app, ""))
	}
	s.End(app, "", "", "x", "?")
	if s.End(app, "", "", "other", "y"); s.Token(app, "") != "y" {
		t.Errorf("after an answer: %q", s.Token(app, ""))
	}
}

func TestSessions_WithoutMergerNothingIsStored(t *testing.T) {
	s, app := api.NewSessions(nil), api.App{ID: "a"}
	s.End(app, "t", "", "", "x")
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
