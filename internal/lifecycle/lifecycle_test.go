package lifecycle_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lifecycle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// record pushes a closer that logs its name and returns err.
func record(t *testing.T, s *lifecycle.Stack, log *[]string, name string, err error) {
	t.Helper()
	if e := s.Push(name, func(context.Context) error { *log = append(*log, name); return err }); e != nil {
		t.Fatal(e)
	}
}

func TestClose_ReverseOrderAndContinuesAfterError(t *testing.T) {
	var s lifecycle.Stack
	var log []string
	bad := fault.New(fault.Corrupt, "store.Close", "broken page")
	record(t, &s, &log, "store", bad)
	record(t, &s, &log, "raft", errors.New("still busy"))
	record(t, &s, &log, "http", nil)

	err := s.Close(t.Context())
	if diff := cmp.Diff([]string{"http", "raft", "store"}, log); diff != "" {
		t.Error(diff)
	}
	if !errors.Is(err, bad) {
		t.Errorf("the error of the store is lost: %v", err)
	}
	for _, want := range []string{"closing raft: still busy", "closing store: broken page"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
}

func TestClose_EmptyStack(t *testing.T) {
	var s lifecycle.Stack
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestClose_IsIdempotent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s lifecycle.Stack
		var calls atomic.Int32
		want := errors.New("boom")
		_ = s.Push("slow", func(context.Context) error {
			calls.Add(1)
			<-time.After(time.Second)
			return want
		})
		errs := make(chan error, 3)
		for range cap(errs) {
			go func() { errs <- s.Close(t.Context()) }()
		}
		for range cap(errs) {
			if err := <-errs; !errors.Is(err, want) {
				t.Errorf("Close = %v", err)
			}
		}
		if n := calls.Load(); n != 1 {
			t.Errorf("closed %d times", n)
		}
	})
}

func TestPush_AfterCloseClosesAtOnce(t *testing.T) {
	var s lifecycle.Stack
	_ = s.Close(t.Context())
	closed := false
	if err := s.Push("late", func(context.Context) error { closed = true; return nil }); err != nil {
		t.Error(err)
	}
	if !closed {
		t.Error("what started during the shutdown was left open")
	}
}

func TestClose_LeavesTimeForLaterClosers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s lifecycle.Stack
		var below time.Duration
		_ = s.Push("disk", func(ctx context.Context) error {
			deadline, _ := ctx.Deadline()
			below = time.Until(deadline)
			return nil
		})
		_ = s.Push("requests", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()

		err := s.Close(ctx)
		if !fault.Is(err, fault.Timeout) || !strings.Contains(err.Error(), "requests") {
			t.Errorf("Close = %v", err)
		}
		if below < 200*time.Millisecond {
			t.Errorf("the disk got only %v", below)
		}
	})
}

func TestClose_GivesMostOfTheTimeToRunningRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s lifecycle.Stack
		for range 20 {
			_ = s.Push("part", func(context.Context) error { return nil })
		}
		_ = s.Push("requests", func(ctx context.Context) error {
			select {
			case <-time.After(4 * time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()

		if err := s.Close(ctx); err != nil {
			t.Errorf("a request of 4 s was cut within 5 s: %v", err)
		}
	})
}

func TestClose_NamesCloserThatIgnoresContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s lifecycle.Stack
		release := make(chan struct{})
		var log []string
		record(t, &s, &log, "disk", nil)
		_ = s.Push("hung", func(context.Context) error { <-release; return nil })
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()

		err := s.Close(ctx)
		if !fault.Is(err, fault.Timeout) || !strings.Contains(err.Error(), "hung did not close in time") {
			t.Errorf("Close = %v", err)
		}
		if diff := cmp.Diff([]string{"disk"}, log); diff != "" {
			t.Error(diff)
		}
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("Close took %v, longer than its context", d)
		}
		close(release)
	})
}

func TestClose_WaitsWithoutDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s lifecycle.Stack
		_ = s.Push("slow", func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Hour):
				return nil
			}
		})
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}
