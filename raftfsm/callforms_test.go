package raftfsm_test

import (
	"context"
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/peercalls"
)

func TestServe_NewerFormIsRefused(t *testing.T) {
	h := open(t, options(t, t.TempDir()))
	for _, method := range peercalls.Methods() {
		_, err := h.Serve(t.Context(), method, []byte{peercalls.Form + 1, 0})
		if !fault.Is(err, fault.Unimplemented) {
			t.Errorf("%s: %v", method, err)
		}
		for _, w := range []string{method, "form 2", "understands up to ", "nothing was done",
			"upgrade the older"} {
			if !strings.Contains(fault.Text(err), w) {
				t.Errorf("%q does not contain %q", fault.Text(err), w)
			}
		}
	}
}

// Only a leader that has queried the servers of its group may raise the format.
func TestServe_FormatEntryOfAnotherNodeIsRefused(t *testing.T) {
	h := open(t, options(t, t.TempDir()))
	request, err := command.AppendRequest(nil, &command.Request{Kind: command.KindFormat, Limit: 2})
	must(t, err)
	call := lenprefix.Append([]byte{peercalls.Form, 0, 0, 1, 0}, request)
	out, err := h.Serve(t.Context(), peercalls.MethodPropose, call)
	must(t, err)
	answer := peercalls.NewFrame(out)
	failed, body := answer.Byte() == 1, answer.Bytes()
	if !failed || !fault.Is(fault.Unmarshal(body), fault.Invalid) || h.Groups()[0].Level() != command.First {
		t.Errorf("%q; the format is %d", out, h.Groups()[0].Level())
	}
}

// A node that stops cancels the calls that it serves. A write that had not begun is then refused with a code that
// makes its sender try another server. A write that had begun may have been applied.
func TestServe_CancelledWriteIsNotTimeout(t *testing.T) {
	h := open(t, options(t, t.TempDir()))
	request, err := command.AppendRequest(nil, &command.Request{Kind: command.KindTick})
	must(t, err)
	call := lenprefix.Append([]byte{peercalls.Form, 0, 0, 1, 0}, request)
	stopping, stop := context.WithCancel(t.Context())
	stop()
	refused := 0
	for range 200 {
		out, err := h.Serve(stopping, peercalls.MethodPropose, call)
		must(t, err)
		answer := peercalls.NewFrame(out)
		if answer.Byte() == 0 {
			continue // the write was faster
		}
		switch err := fault.Unmarshal(answer.Bytes()); fault.CodeOf(err) {
		case fault.Unavailable:
			refused++
		case fault.Indeterminate:
		default:
			t.Fatal(err)
		}
	}
	if refused == 0 {
		t.Error("every write had begun")
	}
}

func TestServe_RefusesUnreadableCalls(t *testing.T) {
	h := open(t, options(t, t.TempDir()))
	for _, payload := range [][]byte{nil, {1}, {2, 0}, {1, 9}, {1, 0}, {1, 0, 0x80}} {
		for _, method := range append(peercalls.Methods(), "raft.nosuch") {
			if (method == peercalls.MethodProgress || method == peercalls.MethodRoute) && len(payload) > 1 &&
				payload[0] == 1 && payload[1] == 0 {
				continue // complete calls, because they carry only the group
			}
			if _, err := h.Serve(t.Context(), method, payload); err == nil {
				t.Errorf("%s with %v was served", method, payload)
			}
		}
	}
}
