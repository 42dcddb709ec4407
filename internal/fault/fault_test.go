package fault_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/internal/fault"
)

func TestWrap_KeepsCode(t *testing.T) {
	base := &fault.Error{Code: fault.Conflict, Op: "kv.Apply", Msg: "etag mismatch", Key: "k"}
	for name, err := range map[string]error{
		"itself":        base,
		"fmt wrap":      fmt.Errorf("saving: %w", base),
		"fault wrap":    fault.Wrap(base, "api.Save", "saving"),
		"twice wrapped": fault.Wrap(fmt.Errorf("x: %w", base), "a", "b"),
	} {
		if fault.CodeOf(err) != fault.Conflict || !fault.Is(err, fault.Conflict) {
			t.Errorf("%s: code = %q", name, fault.CodeOf(err))
		}
		if fault.KeyOf(err) != "k" {
			t.Errorf("%s: key = %q", name, fault.KeyOf(err))
		}
	}
}

func TestCodeOf_ForeignErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		want fault.Code
	}{
		{nil, ""},
		{errors.New("x"), fault.Internal},
		{context.DeadlineExceeded, fault.Timeout},
		{fmt.Errorf("w: %w", context.Canceled), fault.Timeout},
	} {
		if got := fault.CodeOf(c.err); got != c.want {
			t.Errorf("CodeOf(%v) = %q, want %q", c.err, got, c.want)
		}
	}
	if fault.Is(nil, "") {
		t.Error("a nil error carries no code")
	}
	if fault.Wrap(nil, "op", "msg") != nil {
		t.Error("wrapping nil must stay nil")
	}
}

func TestText_HasNoOperation(t *testing.T) {
	err := &fault.Error{Code: fault.Unavailable, Op: "group.Propose", Msg: "the store is read-only",
		Hint: "free disk space", Err: errors.New("12 MiB left")}
	if got, want := fault.Text(err), "the store is read-only: 12 MiB left (free disk space)"; got != want {
		t.Errorf("Text = %q, want %q", got, want)
	}
	if got, want := err.Error(), "group.Propose: the store is read-only: 12 MiB left (free disk space)"; got != want {
		t.Errorf("Error = %q, want %q", got, want)
	}
}

func TestPanicText_ShowsNoValue(t *testing.T) {
	for want, cause := range map[string]any{"string": "a secret", "*errors.errorString": errors.New("a secret"),
		"runtime error: index out of range [1] with length 0": panicOf(func() { _ = []int{}[len(os.Args[:1])] })} {
		if got := fault.PanicText(cause); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func panicOf(f func()) (cause any) {
	defer func() { cause = recover() }()
	f()
	return nil
}

func TestMarshal_RoundTrip(t *testing.T) {
	in := &fault.Error{Code: fault.Conflict, Op: "kv.Apply", Msg: "etag mismatch", Hint: "read again", Key: "k",
		Err: errors.New("cause")}
	out, ok := fault.As(fault.Unmarshal(fault.Marshal(in)))
	if !ok {
		t.Fatal("not a fault.Error after the wire")
	}
	if diff := cmp.Diff([]string{string(in.Code), in.Op, in.Msg, in.Hint, in.Key, "cause"},
		[]string{string(out.Code), out.Op, out.Msg, out.Hint, out.Key, out.Err.Error()}); diff != "" {
		t.Error(diff)
	}
	wrapped := fmt.Errorf("outer: %w", in)
	if got := fault.Unmarshal(fault.Marshal(wrapped)); !fault.Is(got, fault.Conflict) || fault.KeyOf(got) != "k" {
		t.Errorf("wrapped error lost its code or key: %v", got)
	}
	if fault.Unmarshal(nil) != nil || fault.Marshal(nil) != nil {
		t.Error("nil must stay nil")
	}
	if err := fault.Unmarshal([]byte("{")); !fault.Is(err, fault.Internal) {
		t.Errorf("garbage gives %v", err)
	}
}

func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte(`{"code":"conflict","msg":"m"}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := fault.Unmarshal(b); err != nil && fault.CodeOf(err) == "" {
			t.Fatal("an error without a code")
		}
	})
}
