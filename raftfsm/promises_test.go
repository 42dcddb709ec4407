package raftfsm_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/peercalls"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// If a node was idle for so long that the group forgot its origin, it must not acknowledge writes that the
// group then refuses.
func TestEventualWrite_AfterLongPauseIsNotLost(t *testing.T) {
	var clock testClock
	o := options(t, t.TempDir())
	o.Now = clock.now
	o.Timing.ExpiryEvery = time.Millisecond
	h := open(t, o)
	s := h.Store("", "s")
	set(t, s, "app||first", "1", state.Eventual)
	set(t, s, "app||second", "1", state.Eventual) // the group has answered the origin by now
	for round := range 3 {
		clock.advance(25 * time.Hour)
		for i := range 5 {
			key := fmt.Sprintf("app||%d-%d", round, i)
			set(t, s, key, "1", state.Eventual)
			if got := get(t, s, key, state.Strong); !got.Found() {
				t.Fatalf("the acknowledged write of %s is lost", key)
			}
		}
		// The removal of idle origins runs concurrently.
		eventually(t, func() error {
			if due := h.Groups()[0].Machine().OriginDue(); due <= h.Groups()[0].Now() {
				return errors.New("an idle origin is still there")
			}
			return nil
		})
	}
}

// soonTold makes an idle leader announce its commit index to followers soon, so that each round of a test waits less.
func soonTold(o *raftfsm.Options) { o.Timing.Commit = 2 * time.Millisecond }

func TestEventualRead_FollowsOwnStrongWrites(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, soonTold)
	follower := c.others(c.leader())[0]
	eventually(t, func() error { return follower.Ready(0) })
	s := follower.Store("", "s")
	seesAll(t, 100, func(_ int, value string) state.Item {
		set(t, s, "app||k", value, state.Strong)
		return get(t, s, "app||k", state.Eventual)
	})
}

func TestRequestID_ReuseIsRefused(t *testing.T) {
	s := open(t, options(t, t.TempDir())).Store("", "s")
	set(t, s, "app||warm", "1", state.Eventual)
	set(t, s, "app||warm", "2", state.Eventual)
	write := func(key string) error {
		_, err := s.Set(t.Context(), state.SetRequest{RequestID: "r", Consistency: state.Eventual,
			Items: []state.Write{{Key: key, Value: []byte("1")}}})
		return err
	}
	must(t, write("app||a"))
	must(t, write("app||a")) // a retry
	if err := write("app||b"); !fault.Is(err, fault.Invalid) {
		t.Errorf("the same id for another write gave %v", err)
	}
	if got := get(t, s, "app||b", state.Strong); got.Found() {
		t.Error("a refused write took effect")
	}
}

// A lost eventual write is reported once to the reads of its node.
func TestLostWrite_IsReportedOnce(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	lead, _ := c.loseWrite("app||k", func(s state.Store) {
		set(t, s, "app||k", "old", state.Eventual)
		set(t, s, "app||k", "old", state.Eventual)
	})
	s := lead.Store("", "s")
	next := c.leader(lead.Identity().Server)
	set(t, next.Store("", "s"), "app||k", "new", state.Strong)
	c.heal()
	eventually(t, func() error {
		got, err := s.Get(within(t, 10*time.Second), state.GetRequest{Key: "app||k"})
		if err == nil && got.Level != state.Stale {
			err = fmt.Errorf("level %s", got.Level)
		}
		return err
	})
	eventually(t, func() error {
		if got := get(t, s, "app||k", state.Eventual); got.Level != state.SessionLevel || string(got.Value) != "new" {
			return fmt.Errorf("%q at level %s", got.Value, got.Level)
		}
		return nil
	})
}

// Only a new directory may form a cluster. A directory created to join one would add a second leader to that
// cluster.
func TestOpen_JoiningDirectoryNeverFormsCluster(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*raftfsm.Host) error{
		"nothing yet":     func(*raftfsm.Host) error { return nil },
		"part of another": func(h *raftfsm.Host) error { return h.Adopt("0123456789abcdef", 0) },
		"promised":        func(h *raftfsm.Host) error { return h.Promise("other.server") },
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t, t.TempDir())
			o.Bootstrap = false
			h := open(t, o)
			must(t, prepare(h))
			closeHost(t, h)
			o.Bootstrap, o.Registerer = true, prometheus.NewRegistry()
			again := open(t, o)
			if again.Groups()[0].Leading() {
				t.Fatal("the server leads a group of its own")
			}
			_, err := again.Store("", "s").Set(within(t, 200*time.Millisecond),
				state.SetRequest{Items: []state.Write{{Key: "k", Value: []byte("1")}}, Consistency: state.Strong})
			if err == nil {
				t.Error("the server acknowledged a write")
			}
		})
	}
}

func TestServe_RefusesInvalidProposal(t *testing.T) {
	t.Parallel()
	h := open(t, options(t, t.TempDir()))
	last := h.Groups()[0].LastIndex()
	for name, payload := range map[string][]byte{
		"garbage":      {1, 0, 0, 0, 0xff, 0xff, 0xff},
		"nothing":      {1, 0, 0, 0},
		"far too much": append([]byte{1, 0, 0, 0}, make([]byte, raftfsm.MaxRequest+1)...),
	} {
		if _, err := h.Serve(t.Context(), peercalls.MethodPropose, payload); !fault.Is(err, fault.Invalid) &&
			!fault.Is(err, fault.TooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := h.Groups()[0].LastIndex(); got != last {
		t.Errorf("the log grew from %d to %d", last, got)
	}
}

func TestOpen_RefusesDirectoryWithoutTermsAndLog(t *testing.T) {
	o := options(t, t.TempDir())
	o.Engine = raftlog.BoltDB
	h := open(t, o)
	set(t, h.Store("", "s"), "k", "1", state.Strong)
	must(t, h.Groups()[0].Snapshot())
	closeHost(t, h)
	remove("groups/0/stable.db")(t, o.Dir)
	remove("groups/0/log.db")(t, o.Dir)
	o.Registerer = prometheus.NewRegistry()
	if _, err := raftfsm.Open(t.Context(), o); !fault.Is(err, fault.Corrupt) {
		t.Errorf("got %v", err)
	}
}

func TestLargestWrite_SurvivesRestartOnBothEngines(t *testing.T) {
	testutil.SkipUnderRace(t, testutil.ManyBytes)
	if testing.Short() {
		t.Skip("writes and restarts for many seconds")
	}
	// raft-wal has a limit of its own; boltdb is only slow
	for engine, size := range map[raftlog.Engine]int{raftlog.BoltDB: 4 << 20, raftlog.WAL: raftfsm.MaxRequest - 1024} {
		t.Run(string(engine), func(t *testing.T) {
			o := options(t, t.TempDir())
			o.Engine = engine
			h := open(t, o)
			set := func(n int) error {
				_, err := h.Store("", "s").Set(t.Context(),
					state.SetRequest{Items: []state.Write{{Key: "k", Value: make([]byte, n)}},
						Consistency: state.Strong})
				return err
			}
			must(t, set(size))
			if err := set(raftfsm.MaxRequest); !fault.Is(err, fault.TooLarge) {
				t.Errorf("a write over the limit gave %v", err)
			}
			closeHost(t, h)
			o.Registerer = prometheus.NewRegistry()
			if got := get(t, open(t, o).Store("", "s"), "k", state.Strong); len(got.Value) != size {
				t.Errorf("%d of %d bytes came back", len(got.Value), size)
			}
		})
	}
}

func TestDiskSpace_UnknownIsNotFull(t *testing.T) {
	t.Parallel()
	o := options(t, t.TempDir())
	o.FreeBytes = func(string) (uint64, error) { return 0, errors.New("no such call") }
	set(t, open(t, o).Store("", "s"), "k", "1", state.Strong)
}

// When a strong read or listing leaves out an expired item, the item is gone for every later leader too,
// because the log's time has passed its expiry.
func TestStrongRead_MakesExpiryPermanent(t *testing.T) {
	var clock testClock
	o := options(t, t.TempDir())
	o.Now = clock.now
	o.Timing.ExpiryEvery = time.Hour // no background expiry
	h := open(t, o)
	s, m := h.Store("", "s"), h.Groups()[0].Machine()
	for name, read := range map[string]func() int{
		"get": func() int {
			if get(t, s, "app||k", state.Strong).Found() {
				return 1
			}
			return 0
		},
		"list": func() int {
			page, err := s.List(t.Context(), state.ListRequest{Prefix: "app||",
				ReadOptions: state.ReadOptions{Consistency: state.Strong}})
			must(t, err)
			return len(page.Items)
		},
	} {
		_, err := s.Set(t.Context(), state.SetRequest{Consistency: state.Strong,
			Items: []state.Write{{Key: "app||k", Value: []byte("1"), TTL: state.TTL{Set: true, Seconds: 60}}}})
		must(t, err)
		if n := read(); n != 1 {
			t.Errorf("%s finds %d keys before the expiry", name, n)
		}
		clock.advance(2 * time.Minute)
		due, _ := m.NextDue()
		if n := read(); n != 0 || m.Clock() < due {
			t.Errorf("%s finds %d keys; the log's time is %d, the key was due at %d", name, n, m.Clock(), due)
		}
	}
}
