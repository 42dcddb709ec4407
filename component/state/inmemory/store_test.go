package inmemory_test

import (
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/inmemory"
	"github.com/quorate/quorate/internal/fault"
)

func set(t *testing.T, s *inmemory.Store, id string, items ...state.Write) []string {
	t.Helper()
	w, err := s.Set(t.Context(), state.SetRequest{Items: items, RequestID: id})
	if err != nil {
		t.Fatal(err)
	}
	return w.ETags
}

func get(t *testing.T, s *inmemory.Store, key string) state.Item {
	t.Helper()
	item, err := s.Get(t.Context(), state.GetRequest{Key: key})
	if err != nil {
		t.Fatal(err)
	}
	return item
}

func lasting(key string, seconds int64) state.Write {
	return state.Write{Key: key, Value: []byte("1"), TTL: state.TTL{Set: true, Seconds: seconds}}
}

func closing(t *testing.T, s *inmemory.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestSweep_RemovesExpiredKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := inmemory.Open(inmemory.Options{SweepEvery: 10 * time.Second})
		defer closing(t, s)
		for i := range 2500 { // more than one batch
			set(t, s, "", lasting(fmt.Sprint("short", i), 15))
		}
		set(t, s, "", lasting("long", 1000), state.Write{Key: "ever"}, lasting("replaced", 15))
		set(t, s, "", state.Write{Key: "replaced"})
		<-time.After(16 * time.Second)
		synctest.Wait()
		if n := s.Size(); n != 2503 {
			t.Errorf("before the sweep %d keys are held, want all 2503", n)
		}
		if get(t, s, "short0").Found() {
			t.Error("an expired key is visible until it is removed")
		}
		<-time.After(5 * time.Second)
		synctest.Wait()
		if n := s.Size(); n != 3 {
			t.Errorf("after the sweep %d keys are held, want long, ever and replaced", n)
		}
	})
}

func TestClose_WaitsForSweeper(t *testing.T) {
	// A bubble ends only when every goroutine in it has.
	synctest.Test(t, func(t *testing.T) {
		closing(t, inmemory.Open(inmemory.Options{}))
	})
}

func TestExpiry_ClockSetBack(t *testing.T) {
	clock := newClock()
	s := inmemory.Open(inmemory.Options{Now: clock.Now, SweepEvery: time.Hour})
	defer closing(t, s)
	set(t, s, "", lasting("k", 10))
	clock.Advance(11 * time.Second)
	if get(t, s, "k").Found() {
		t.Fatal("the key did not expire")
	}
	clock.Advance(-time.Hour)
	if get(t, s, "k").Found() {
		t.Error("the key came back")
	}
}

func TestExpiry_NeverEarly(t *testing.T) {
	clock := newClock()
	s := inmemory.Open(inmemory.Options{Now: clock.Now, SweepEvery: time.Hour})
	defer closing(t, s)
	at := clock.Now().Add(time.Second + time.Microsecond)
	set(t, s, "", state.Write{Key: "k", TTL: state.TTL{Set: true, At: &at}})
	clock.Advance(time.Second)
	if !get(t, s, "k").Found() {
		t.Error("the key expired a microsecond early")
	}
	clock.Advance(time.Millisecond)
	if get(t, s, "k").Found() {
		t.Error("the key did not expire")
	}
}

func TestExpiry_ExtremeTTLs(t *testing.T) {
	s := inmemory.Open(inmemory.Options{})
	defer closing(t, s)
	for i, ttl := range []state.TTL{{Set: true, Seconds: 1<<63 - 1},
		{Set: true, At: new(time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC))}} {
		key := strconv.Itoa(i)
		set(t, s, "", state.Write{Key: key, TTL: ttl})
		if !get(t, s, key).Found() {
			t.Errorf("a value that lives for %+v is gone", ttl)
		}
	}
	set(t, s, "", state.Write{Key: "past", TTL: state.TTL{Set: true, At: new(time.Unix(-1, 0))}})
	if get(t, s, "past").Found() {
		t.Error("a value that expired before 1970 is there")
	}
}

func TestRequestID_IsRememberedForTenMinutes(t *testing.T) {
	clock := newClock()
	s := inmemory.Open(inmemory.Options{Now: clock.Now, SweepEvery: time.Hour})
	defer closing(t, s)
	item := state.Write{Key: "app||k", Value: []byte("1")}
	first := set(t, s, "id", item)[0]
	clock.Advance(10*time.Minute - time.Second)
	if got := set(t, s, "id", item)[0]; got != first {
		t.Errorf("a retry after less than ten minutes was done again: ETag %q after %q", got, first)
	}
	clock.Advance(2 * time.Second)
	if got := set(t, s, "id", item)[0]; got == first {
		t.Error("a retry after more than ten minutes was answered from memory")
	}
}

func TestRequestID_CanBeReusedWhenForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := inmemory.Open(inmemory.Options{})
		defer closing(t, s)
		first := set(t, s, "id", state.Write{Key: "k", Value: []byte("1")})[0]
		<-time.After(10*time.Minute + 2*time.Second)
		synctest.Wait()
		again := set(t, s, "id", state.Write{Key: "k", Value: []byte("2")})[0]
		if got := get(t, s, "k"); got.ETag != again || again == first {
			t.Errorf("key has ETag %q, writes returned %q and %q", got.ETag, first, again)
		}
	})
}

func TestRequestID_RefusalIsNotRemembered(t *testing.T) {
	s := inmemory.Open(inmemory.Options{})
	defer closing(t, s)
	set(t, s, "", state.Write{Key: "k"})
	create := state.SetRequest{RequestID: "id", Items: []state.Write{{Key: "k", Concurrency: state.FirstWrite}}}
	if _, err := s.Set(t.Context(), create); !fault.Is(err, fault.Conflict) {
		t.Fatalf("Set: %v", err)
	}
	if _, err := s.Delete(t.Context(), state.DeleteRequest{Key: "k"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Set(t.Context(), create); err != nil {
		t.Errorf("the retry: %v", err)
	}
}

func TestRequestID_IsPerApplication(t *testing.T) {
	s := inmemory.Open(inmemory.Options{})
	defer closing(t, s)
	set(t, s, "1", state.Write{Key: "shop||k", Value: []byte("shop's")})
	set(t, s, "1", state.Write{Key: "till||k", Value: []byte("till's")})
	if got := get(t, s, "till||k"); string(got.Value) != "till's" {
		t.Errorf("the second application's write was lost: %q", got.Value)
	}
}

func TestTransact_RefusesMissingKeyAndUnknownKind(t *testing.T) {
	s := inmemory.Open(inmemory.Options{})
	defer closing(t, s)
	for _, op := range []state.Operation{{}, {Kind: 7, Write: state.Write{Key: "k"}}} {
		_, err := s.Transact(t.Context(),
			state.TransactRequest{Operations: []state.Operation{{Write: state.Write{Key: "ok"}}, op}})
		if !fault.Is(err, fault.Invalid) || s.Size() != 0 {
			t.Errorf("Transact(%+v): %v, %d keys", op, err, s.Size())
		}
	}
}

func BenchmarkGet(b *testing.B) {
	s := inmemory.Open(inmemory.Options{})
	defer s.Close() //nolint:errcheck // never fails
	if _, err := s.Set(b.Context(),
		state.SetRequest{Items: []state.Write{{Key: "app||k", Value: []byte("1")}}}); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Get(b.Context(), state.GetRequest{Key: "app||k"}); err != nil {
			b.Fatal(err)
		}
	}
}
