package outside_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/fault"
)

func TestSuccessor(t *testing.T) {
	for prefix, want := range map[string]string{"": "", "a": "b", "a\U0010ffff": "b", "\U0010ffff": "",
		"\ud7ff": "\ue000",
		"é":      "ê"} {
		if got := outside.Successor(prefix); got != want {
			t.Errorf("Successor(%q) = %q, want %q", prefix, got, want)
		}
	}
}

func TestBounds(t *testing.T) {
	for _, c := range []struct{ prefix, after, from, greater, end string }{
		{"a||", "", "a||", "", "a|}"},
		{"a||", "a||b", "a||", "a||b", "a|}"},
		{"a||", "a||T||\xff", "a||T|}", "a||T||", "a|}"},
		{"a||b", "a||T||\xff", "a||b", "a||T||", "a||c"},
		{"", "a\xffb", "b", "a", ""},
	} {
		from, greater, end := outside.Bounds(state.ListRequest{Prefix: c.prefix, After: c.after})
		if from != c.from || greater != c.greater || end != c.end {
			t.Errorf("Bounds of %q after %q = %q, %q, %q; want %q, %q, %q", c.prefix, c.after, from, greater, end,
				c.from, c.greater, c.end)
		}
	}
}

func TestContentType(t *testing.T) {
	for _, bytes := range []bool{true, false} {
		want := map[bool]string{true: state.OctetStream, false: ""}[bytes]
		if got := outside.ContentType(outside.NewETag(bytes), []byte("1")); got != want {
			t.Errorf("a value whose ETag says bytes=%v has type %q", bytes, got)
		}
	}
	if got := outside.ContentType("of another writer", []byte("\xff")); got != state.OctetStream {
		t.Errorf("bytes have the type %q", got)
	}
}

func TestWait(t *testing.T) {
	calls := 0
	err := outside.Wait(t.Context(), func(context.Context) error {
		if calls++; calls < 3 {
			return fault.New(fault.Unavailable, "test", "not yet")
		}
		return nil
	})
	if err == nil || calls != 1 {
		t.Errorf("without a deadline: %v after %d calls", err, calls)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := outside.Wait(ctx, func(context.Context) error {
		if calls++; calls < 4 {
			return fault.New(fault.Unavailable, "test", "not yet")
		}
		return fault.New(fault.Denied, "test", "wrong password")
	}); !fault.Is(err, fault.Denied) || calls != 4 {
		t.Errorf("with a deadline: %v after %d calls", err, calls)
	}
}

// If the deadline ends a probe, the error of an earlier probe is still returned.
func TestWait_KeepsTheCauseWhenTimeIsUp(t *testing.T) {
	for _, code := range []fault.Code{fault.Unavailable, fault.Timeout} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			calls := 0
			err := outside.Wait(ctx, func(ctx context.Context) error {
				if calls++; calls < 3 {
					return fault.New(fault.Unavailable, "test", "the certificate is not trusted")
				}
				<-ctx.Done()
				return fault.New(code, "test", "the connection was lost")
			})
			if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "not trusted") || calls != 3 {
				t.Errorf("%v after %d calls", err, calls)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	for want, err := range map[string]error{
		"request ids":   outside.Check("op", "X", "r", nil),
		"without a key": outside.Check("op", "X", "", []state.Operation{{}}),
	} {
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestPartial(t *testing.T) {
	for code, want := range map[fault.Code]fault.Code{
		fault.Unavailable: fault.Indeterminate, fault.Overloaded: fault.Indeterminate,
		fault.Timeout: fault.Indeterminate, fault.ReadOnly: fault.Indeterminate,
		fault.Indeterminate: fault.Indeterminate, fault.Conflict: fault.Conflict, fault.Denied: fault.Denied,
	} {
		cause := &fault.Error{Code: code, Op: "test", Key: "k", Msg: "the cause"}
		err := outside.Partial("op", cause, "some items were written", "")
		if !fault.Is(err, want) || fault.KeyOf(err) != "k" || !strings.Contains(err.Error(), "the cause") ||
			!strings.Contains(err.Error(), "some items were written") {
			t.Errorf("%s: %v with code %q, want %q", code, err, fault.CodeOf(err), want)
		}
	}
}

func TestGate(t *testing.T) {
	var g outside.Gate
	if err := g.Enter(t.Context(), "op"); err != nil {
		t.Error(err)
	}
	if !g.Close() || g.Close() || !fault.Is(g.Enter(t.Context(), "op"), fault.Unavailable) {
		t.Error("the gate is not closed once")
	}
}

func TestParseInterval(t *testing.T) {
	for text, want := range map[string]time.Duration{"5": 5 * time.Second, "1h": time.Hour, "-1": -time.Second} {
		if got, err := outside.ParseInterval(text); err != nil || got != want {
			t.Errorf("ParseInterval(%q) = %v, %v", text, got, err)
		}
	}
	if outside.CheckInterval("soon") == nil || outside.CheckTimeout("10ms") == nil || outside.Number(1,
		2)("3") == nil {
		t.Error("a bad value was accepted")
	}
}

func TestExpiry_IsExactUntilTheYear9999(t *testing.T) {
	last := time.Unix(state.LastExpiry, 0).UTC()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.FixedZone("east", 3600))
	left := last.UnixMicro() - now.UnixMicro()
	for micros, want := range map[int64]time.Time{1: now.Add(time.Microsecond).UTC(), left - 1: last.Add(-1000),
		left: last, left + 1: last, math.MaxInt64: last} {
		if got := outside.Expiry(now, micros); got != want {
			t.Errorf("%d: %v, want %v", micros, got, want)
		}
	}
}
