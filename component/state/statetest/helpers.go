package statetest

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// Put returns an unconditional write of value to key.
func Put(key, value string) state.Write { return state.Write{Key: key, Value: []byte(value)} }

// Set writes items at the level strong.
func Set(ctx context.Context, s state.Store, items ...state.Write) error {
	_, err := s.Set(ctx, state.SetRequest{Items: items, Consistency: state.Strong})
	return err
}

// Get reads a key at the level strong.
func Get(ctx context.Context, s state.Store, key string) (state.Item, error) {
	return s.Get(ctx, state.GetRequest{Key: key, ReadOptions: strong()})
}

// WantValue checks that the value of key is value, and returns the item.
func WantValue(t testing.TB, s state.Store, key, value string) state.Item {
	t.Helper()
	item, err := Get(t.Context(), s, key)
	if err != nil || string(item.Value) != value {
		t.Fatalf("Get(%q) = %q, %v; want %q", key, item.Value, err, value)
	}
	return item
}

// WantFault checks that err has the given code, and that its text contains all parts.
func WantFault(t testing.TB, err error, code fault.Code, parts ...string) {
	t.Helper()
	if !fault.Is(err, code) {
		t.Fatalf("error %v has code %q, want %q", err, fault.CodeOf(err), code)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not contain %q", err, part)
		}
	}
}

// WantOpenFault calls open and checks that it fails with the given code, and that the text of the error contains all
// parts. It returns this error.
//
// A store that cannot reach its server retries until its context ends, so the first call has a timeout of one second.
// On a busy machine, this may be too short for the expected error. WantOpenFault then calls open again, each time with
// a timeout four times as long.
func WantOpenFault(t testing.TB, open func(context.Context) error, code fault.Code, parts ...string) error {
	t.Helper()
	for patience := time.Second; ; patience *= 4 {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err := open(ctx)
		ended := ctx.Err() != nil
		cancel()
		lacks := func(part string) bool { return err == nil || !strings.Contains(err.Error(), part) }
		if !ended || patience >= testutil.Patience/2 || fault.Is(err, code) && !slices.ContainsFunc(parts, lacks) {
			WantFault(t, err, code, parts...)
			return err
		}
	}
}

// FreePort returns a TCP port of the loopback address that is not in use. Until the test ends, no other test gets this
// port, and the system does not assign it to a connection.
func FreePort(t testing.TB) string {
	t.Helper()
	return strconv.Itoa(testutil.SparePort(t))
}
