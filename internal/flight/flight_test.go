package flight_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/internal/flight"
)

var errDown = errors.New("down")

// hang is a fetch from a server that does not answer.
func hang(ctx context.Context) (int, error) {
	<-ctx.Done()
	return 0, errDown
}

// TestGroup_CallersShareOneFetchAndItsFailure checks that four requests of a server that hangs wait for one fetch, and
// not for one another.
func TestGroup_CallersShareOneFetchAndItsFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.New[int](10*time.Second, 2*time.Second)
		defer g.Close()
		begin, fetches := time.Now(), 0
		fetch := func(ctx context.Context) (int, error) {
			fetches++
			return hang(ctx)
		}
		for range 4 {
			go func() {
				_, err := g.Do(t.Context(), "k", fetch)
				if took := time.Since(begin); !errors.Is(err, errDown) || took != 10*time.Second {
					t.Errorf("a caller got %v after %s", err, took)
				}
			}()
		}
		<-time.After(10 * time.Second)
		synctest.Wait()
		if _, err := g.Do(t.Context(), "k", fetch); !errors.Is(err, errDown) || fetches != 1 {
			t.Errorf("after the failure: %v, and %d fetches", err, fetches)
		}
		<-time.After(2 * time.Second)
		n, err := g.Do(t.Context(), "k", func(context.Context) (int, error) { return 7, nil })
		if n != 7 || err != nil {
			t.Errorf("when the failure is forgotten: %d, %v", n, err)
		}
	})
}

// TestGroup_CallerWaitsNoLongerThanItsContext checks that a caller that gives up does not end the fetch of the others.
func TestGroup_CallerWaitsNoLongerThanItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.New[int](10*time.Second, 0)
		defer g.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		slow := func(ctx context.Context) (int, error) {
			select {
			case <-time.After(5 * time.Second):
				return 1, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}
		begin := time.Now()
		_, err := g.Do(ctx, "k", slow)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Second {
			t.Errorf("got %v after %s", err, time.Since(begin))
		}
		n, err := g.Do(t.Context(), "k", func(context.Context) (int, error) { return 0, errors.New("a second fetch") })
		if n != 1 || err != nil || time.Since(begin) != 5*time.Second {
			t.Errorf("the other caller got %d, %v after %s", n, err, time.Since(begin))
		}
	})
}

func TestGroup_CloseEndsFetches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := flight.New[int](time.Hour, time.Hour)
		go func() { _, _ = g.Do(t.Context(), "k", hang) }()
		synctest.Wait()
		begin := time.Now()
		g.Close()
		g.Close()
		if _, err := g.Do(t.Context(), "other", hang); !errors.Is(err, flight.ErrClosed) || time.Since(begin) != 0 {
			t.Errorf("after Close: %v after %s", err, time.Since(begin))
		}
	})
}

func TestGroup_PanicIsAnError(t *testing.T) {
	g := flight.New[[]byte](time.Second, time.Hour)
	defer g.Close()
	huge := func(context.Context) ([]byte, error) { return make([]byte, len(t.Name())-1000), nil }
	_, err := g.Do(t.Context(), "k", huge)
	if err == nil {
		t.Error("a fetch that panics succeeded")
	}
}

// TestGroup_RemembersFewFailures checks the bound of the memory of failures. The server may choose the keys.
func TestGroup_RemembersFewFailures(t *testing.T) {
	g := flight.New[int](time.Second, time.Hour)
	defer g.Close()
	fail := func(context.Context) (int, error) { return 0, errDown }
	for i := range 10_000 {
		_, _ = g.Do(t.Context(), strconv.Itoa(i), fail)
	}
	if n := flight.Failures(g); n > 64 {
		t.Errorf("%d failures are remembered", n)
	}
}
