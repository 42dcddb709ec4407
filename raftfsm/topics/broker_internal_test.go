package topics

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/records"
)

// idRecords stores the keys that were written under a condition, and counts the requests.
type idRecords struct {
	records.Access
	keys   map[string]bool
	writes int
	stored int // messages that were appended

	policies int // how often the policy of topic t was written
}

// Locate implements records.Access.
func (*idRecords) Locate(context.Context, string, string) (uint32, error) { return 0, nil }

// Values implements records.Access.
func (f *idRecords) Values(_ context.Context, _ uint32, _ string, keys []string) ([]kv.Value, error) {
	out := make([]kv.Value, len(keys))
	for i := range keys {
		out[i].Found = f.keys[keys[i]]
	}
	return out, nil
}

// Write implements records.Access.
func (f *idRecords) Write(_ context.Context, _ uint32, r *command.Request) (kv.Result, error) {
	f.writes++
	for i := range r.Ops {
		if o := &r.Ops[i]; o.Cond == command.CondAbsent && f.keys[o.Key] {
			return kv.Result{Outcome: kv.Conflict, Key: o.Key}, nil
		}
	}
	for i := range r.Ops {
		switch o := &r.Ops[i]; {
		case o.Kind == command.OpAppend:
			f.stored++
		case o.Key == (Topic{Store: "s", Name: "t"}).key(tablePolicy, ""):
			f.policies++
		case o.Kind == command.OpSet && o.Cond == command.CondAbsent:
			f.keys[o.Key] = true
		}
	}
	return kv.Result{Outcome: kv.Applied}, nil
}

// A client publishes a bulk of messages again. This takes a few requests, not one for each message.
func TestBroker_RepeatedBulk(t *testing.T) {
	f := &idRecords{keys: map[string]bool{}}
	b := NewBroker(f, "s", BrokerOptions{Window: time.Minute})
	messages := []pubsub.Message{{}}
	for n := range 1000 {
		messages = append(messages, pubsub.Message{ID: fmt.Sprint(n)})
	}
	for _, part := range [][]pubsub.Message{messages[:900], messages} {
		_, err := b.Publish(t.Context(), pubsub.PublishRequest{Topic: "t", Messages: part})
		testutil.Must(t, err)
	}
	if f.writes != 3 || f.stored != len(messages)+1 { // the one without an id is stored twice
		t.Errorf("%d requests store %d messages", f.writes, f.stored)
	}
	testutil.Must(t, b.Close())
}

// A restore removes the policy of a topic that was created after the backup. Its publishers store the policy again.
func TestBroker_StoresPolicyAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &idRecords{keys: map[string]bool{}}
		b := NewBroker(f, "s", BrokerOptions{})
		for range 3 * 60 { // one message each second
			_, err := b.Publish(t.Context(), pubsub.PublishRequest{Topic: "t", Messages: []pubsub.Message{{}}})
			testutil.Must(t, err)
			<-time.After(time.Second)
		}
		if f.policies != 3 {
			t.Errorf("the policy was stored %d times in 3 minutes", f.policies)
		}
		testutil.Must(t, b.Close())
	})
}
