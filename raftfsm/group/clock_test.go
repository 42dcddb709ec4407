package group

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
)

// jumped returns t with its wall clock moved by whole seconds and its monotonic reading unchanged, as after a
// change of the system time. jumped relies on the layout of time.Time. In a time with a monotonic reading, the wall
// seconds are bits 30 to 62 of the first word.
func jumped(t time.Time, seconds int64) time.Time {
	wall := (*uint64)(unsafe.Pointer(&t)) //nolint:gosec // the only way for a test to change the wall clock alone
	*wall += uint64(seconds) << 30
	return t
}

func TestJumped_MovesOnlyWallClock(t *testing.T) {
	now := time.Now()
	back := jumped(now, -3600)
	if back.Unix() != now.Unix()-3600 || back.Sub(now) != 0 {
		t.Fatalf("the helper no longer works: wall moved by %ds, monotonic by %s", back.Unix()-now.Unix(),
			back.Sub(now))
	}
}

func TestClock_IgnoresWallClockJumpsAfterOpen(t *testing.T) {
	now, jump := time.Now(), int64(0) // not in a synctest bubble, because its times have no monotonic reading
	start := uint64(now.UnixMilli())
	c := newClock(func() time.Time { return jumped(now, jump) })
	for _, jump = range []int64{-86400, 86400, 3600, -3600} {
		before := c.leader()
		now = now.Add(time.Second)
		if got := c.leader() - before; got != 1000 {
			t.Errorf("after a jump by %ds a second takes %d ms", jump, got)
		}
	}
	if got := c.leader() - start; got != 4000 {
		t.Errorf("after 4 s cluster time has moved by %d ms", got)
	}
}

func TestClock_NeverGoesBackward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock(time.Now)
		rnd := rand.New(rand.NewPCG(1, 2))
		machine := uint64(time.Now().UnixMilli()) // the newest timestamp observed
		var replica, leader uint64
		for range 5000 {
			switch rnd.IntN(4) {
			case 0: // an entry stamped some time ago by a leader whose clock runs at the same rate
				machine = max(machine, uint64(time.Now().UnixMilli())-rnd.Uint64N(3000)+rnd.Uint64N(2000))
				c.observe(machine)
			case 1:
				<-time.After(time.Duration(rnd.IntN(2000)) * time.Millisecond)
			}
			r, l := c.replica(), c.leader()
			switch {
			case r < replica:
				t.Fatalf("a replica's time went back by %d ms", replica-r)
			case l < leader:
				t.Fatalf("a leader's time went back by %d ms", leader-l)
			case r > l:
				t.Fatalf("a replica's time is %d ms ahead of the same node's time as leader", r-l)
			case r < machine:
				t.Fatalf("time is %d ms behind an applied entry", machine-r)
			}
			replica, leader = r, l
		}
	})
}

func TestClock_FollowerIsNotBehindItsTimeAsLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock(time.Now)
		c.observe(uint64(time.Now().UnixMilli()) - 60_000) // the log is a minute behind this node's wall clock
		asLeader := c.leader()
		<-time.After(time.Second)
		if got := c.replica(); got < asLeader {
			t.Errorf("as a follower the node is %d ms behind its time as leader", asLeader-got)
		}
	})
}

// A later timestamp is observed during the observation of an earlier one.
func TestClock_EarlierTimestampDoesNotReplaceLaterOne(t *testing.T) {
	at, during := time.Now(), func() {}
	c := newClock(func() time.Time {
		run := during
		during = func() {}
		run()
		return at
	})
	c.observe(1000)
	during = func() { c.observe(3000) }
	c.observe(2000)
	if got := c.replica(); got != 3000 {
		t.Errorf("the cluster time is %d, want 3000", got)
	}
}

// The observation of a timestamp reads the clock once. Otherwise the cluster time that another goroutine reads between
// two readings could be later than the cluster time after the observation.
func TestClock_ObservationDoesNotMoveTimeBack(t *testing.T) {
	at := time.Now()
	c := newClock(func() time.Time { return at })
	c.observe(1000)
	at = at.Add(999 * time.Millisecond)
	readings := 0
	c.now = func() time.Time {
		readings++
		return at.Add(time.Duration(readings-1) * 50 * time.Millisecond)
	}
	c.observe(2000)
	at, c.now = at.Add(50*time.Millisecond), func() time.Time { return at }
	if got := c.replica(); got < 2049 {
		t.Errorf("the cluster time is %d, and was 2049", got)
	}
}

func TestClock_FollowerWithoutStampIsZero(t *testing.T) {
	c := newClock(time.Now)
	if got := c.replica(); got != 0 {
		t.Errorf("got %d", got)
	}
}

func TestClock_LeaderBehindLogContinuesFromLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock(time.Now)
		ahead := uint64(time.Now().UnixMilli()) + 3_600_000
		c.observe(ahead)
		<-time.After(1500 * time.Millisecond)
		if got := c.leader(); got != ahead+1500 {
			t.Errorf("leader's time is %d, want %d", got, ahead+1500)
		}
	})
}
