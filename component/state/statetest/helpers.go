package statetest

import (
	"context"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// Put returns an unconditional write of a value.
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

// WantValue checks that a key has a value, and returns the item.
func WantValue(t testing.TB, s state.Store, key, value string) state.Item {
	t.Helper()
	item, err := Get(t.Context(), s, key)
	if err != nil || string(item.Value) != value {
		t.Fatalf("Get(%q) = %q, %v; want %q", key, item.Value, err, value)
	}
	return item
}

// WantFault checks the code of an error, and that its text has all parts.
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

// FreePort returns a TCP port of the loopback address that is not in use.
func FreePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}
