package workflows

import (
	"context"
	"testing"

	"github.com/dapr/durabletask-go/api/protos"

	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/records"
)

// scripted is a cluster with one group. The function answer answers the calls to the leader.
type scripted struct {
	records.Access
	answer func(ctx context.Context, c *call) (out []byte, repeated bool, err error)
}

func (*scripted) Groups(context.Context) (uint32, error) { return 1, nil }

func (*scripted) Locate(context.Context, string, string) (uint32, error) { return 0, nil }

func (s *scripted) Ask(ctx context.Context, _ uint32, _ string, body []byte) ([]byte, bool, error) {
	c, err := readCall(&lenprefix.Reader{Rest: body})
	if err != nil {
		return nil, false, err
	}
	return s.answer(ctx, &c)
}

// The last attempt of a call was not executed, but an earlier attempt may have been. The caller gets
// fault.Indeterminate.
func TestBroker_RepeatedCallMayHaveBeenExecuted(t *testing.T) {
	repeated := false
	b := NewBroker(&scripted{answer: func(context.Context, *call) ([]byte, bool, error) {
		return nil, repeated, fault.New(fault.Unavailable, "test", "no leader")
	}}, BrokerOptions{})
	for name, f := range map[string]func() error{
		"start": func() error {
			return b.Start(t.Context(), "shop", &protos.CreateInstanceRequest{InstanceId: "one", Name: "chain"})
		},
		"raise": func() error {
			return b.Raise(t.Context(), "shop", &protos.RaiseEventRequest{InstanceId: "one", Name: "go"})
		},
		"purge": func() error {
			_, err := b.Purge(t.Context(), "shop", "one", false, false)
			return err
		},
	} {
		for again, want := range map[bool]fault.Code{false: fault.Unavailable, true: fault.Indeterminate} {
			if repeated = again; !fault.Is(f(), want) {
				t.Errorf("%s, repeated %t: %v, want %s", name, again, f(), want)
			}
		}
	}
	if _, err := b.State(t.Context(), "shop", "one", false); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a repeated read: %v", err)
	}
}

// An attempt of a purge was executed, and its answer was lost. The next attempt finds no instance.
func TestBroker_RepeatedPurgeFindsNothing(t *testing.T) {
	repeated := false
	b := NewBroker(&scripted{answer: func(context.Context, *call) ([]byte, bool, error) {
		return nil, repeated, workflow.NoInstance("one")
	}}, BrokerOptions{})
	if n, err := b.Purge(t.Context(), "shop", "one", false, false); n != 0 || !fault.Is(err, fault.NotFound) {
		t.Errorf("the first attempt: %d, %v", n, err)
	}
	repeated = true
	if n, err := b.Purge(t.Context(), "shop", "one", false, false); n != 1 || err != nil {
		t.Errorf("the second attempt: %d, %v", n, err)
	}
}
