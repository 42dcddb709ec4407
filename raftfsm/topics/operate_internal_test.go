package topics

import (
	"context"
	"testing"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/grouptest"
	"github.com/quorate/quorate/raftfsm/records"
)

// lostAnswer is a leader whose answer is lost. The repeated call finds no leader.
type lostAnswer struct{ records.Access }

func (lostAnswer) Groups(context.Context) (uint32, error) { return 1, nil }
func (lostAnswer) Ask(context.Context, uint32, string, []byte) ([]byte, bool, error) {
	return nil, true, fault.New(fault.NotLeader, "test", "the group has no leader")
}

// An operation whose answer was lost may have been executed, so its error must not say that nothing was done.
func TestAdmin_ReportsALostAnswerAsIndeterminate(t *testing.T) {
	a := NewAdmin(lostAnswer{}, "s")
	ignore := func(Progress) error { return nil }
	for name, operation := range map[string]func() error{
		"replay":  func() error { return a.Replay(t.Context(), "orders", "g", 1, time.Time{}) },
		"remove":  func() error { return a.Remove(t.Context(), "orders", "", true, ignore) },
		"redrive": func() error { return a.Redrive(t.Context(), "orders-dead", "", ignore) },
	} {
		if err := operation(); !fault.Is(err, fault.Indeterminate) {
			t.Errorf("%s: %v, want %s", name, err, fault.Indeterminate)
		}
	}
}

// replies are the leaders of several Raft groups. Each answers one call.
type replies struct {
	records.Access
	list []reply
}

type reply struct {
	repeated bool
	err      error
}

func (r *replies) Groups(context.Context) (uint32, error) { return uint32(len(r.list)), nil } //nolint:gosec // few
func (r *replies) Ask(_ context.Context, gid uint32, _ string, _ []byte) ([]byte, bool, error) {
	return nil, r.list[gid].repeated, r.list[gid].err
}

// A replay moves the parts of a group in several Raft groups. A Raft group without the consumer group does not end it,
// also if the answer of an earlier attempt was lost. An error after a change is indeterminate.
func TestAdmin_ReplayInSeveralGroups(t *testing.T) {
	notFound := fault.New(fault.NotFound, "test", "no group")
	unavailable := fault.New(fault.Unavailable, "test", "no majority")
	for name, c := range map[string]struct {
		list []reply
		want fault.Code
	}{
		"gone after a lost answer, moved":      {[]reply{{true, notFound}, {}}, ""},
		"moved, gone after a lost answer":      {[]reply{{}, {true, notFound}}, ""},
		"gone after a lost answer, no group":   {[]reply{{true, notFound}, {false, notFound}}, fault.NotFound},
		"moved, not available":                 {[]reply{{}, {false, unavailable}}, fault.Indeterminate},
		"no group, not available":              {[]reply{{false, notFound}, {false, unavailable}}, fault.Unavailable},
		"no group, not available after a loss": {[]reply{{false, notFound}, {true, unavailable}}, fault.Indeterminate},
		"not available":                        {[]reply{{false, unavailable}, {}}, fault.Unavailable},
	} {
		r := &replies{list: c.list}
		err := NewAdmin(r, "s").Replay(t.Context(), "orders", "g", 1, time.Time{})
		if code := fault.CodeOf(err); code != c.want {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if err := NewBroker(r, "s", BrokerOptions{}).Replay(t.Context(), "orders", "g", time.Time{}); fault.CodeOf(
			err) != c.want {
			t.Errorf("%s, by the broker: %v, want %q", name, err, c.want)
		}
	}
}

// A replay needs several entries, and the second one fails. The first one is applied, so the error must not say that
// nothing was done.
func TestKeeper_ReplayThatFailsAfterAChangeIsIndeterminate(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		const count = maxBack + 1
		l.subscribe("node", 1, orders, "g")
		offsets := l.publishTo(orders, make([]pubsub.Message, count)...)
		l.parkAll("g", offsets, offsets[count-1])
		replay := func(first bool) error {
			done := make(chan error, 1)
			go func() { done <- l.Replay(orders, "g", offsets[0], 0) }()
			l.Group.Settle()
			for applied := !first; ; {
				c := l.Calls()[0]
				switch {
				case c.Kind != grouptest.Commit:
					l.Release(c, true)
				case !applied:
					l.Release(c, true)
					applied = true
				default:
					l.Answer(c, grouptest.Reply{Err: fault.New(fault.ReadOnly, "test", "the disk is full")})
					return <-done
				}
			}
		}
		for first, want := range map[bool]fault.Code{false: fault.ReadOnly, true: fault.Indeterminate} {
			if err := replay(first); !fault.Is(err, want) {
				t.Errorf("one entry is applied: %t: %v, want %s", first, err, want)
			}
		}
	})
}
