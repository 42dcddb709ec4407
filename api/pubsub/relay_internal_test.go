package pubsub

import (
	"context"
	"testing"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/state"
)

// transactional is a broker that can take part in transactions.
type transactional struct{ pubsub.Broker }

func (transactional) StagePublish(context.Context, pubsub.PublishRequest) (state.Effect, error) {
	return nil, nil
}

func (transactional) StageAck(context.Context, pubsub.AckRequest) (state.Effect, error) {
	return nil, nil
}

// plain is a broker that cannot take part in transactions.
type plain struct{ pubsub.Broker }

type brokers []*pubsub.Instance

func (b brokers) PubSubs() []*pubsub.Instance { return b }

func (b brokers) PubSub(name string) (*pubsub.Instance, bool) {
	for _, i := range b {
		if i.Name == name {
			return i, true
		}
	}
	return nil, false
}

func (brokers) Loaded() bool { return true }

func TestRelayed_ChoosesComponent(t *testing.T) {
	raft := func(name string, scopes ...string) *pubsub.Instance {
		return &pubsub.Instance{Name: name, Broker: transactional{}, Scopes: scopes}
	}
	redis := &pubsub.Instance{Name: "redis", Broker: plain{}}
	for name, c := range map[string]struct {
		all                  brokers
		internal             string
		outside, transaction string // internal topic for a store that is outside transactions, and one that is not
	}{
		"nothing but the broker":     {brokers{redis}, "", "redis", ""},
		"the one that always exists": {brokers{raft("a"), raft("pubsub"), redis}, "", "pubsub", "pubsub"},
		"another one":                {brokers{redis, raft("a")}, "", "a", "a"},
		"one of another application": {brokers{redis, raft("a", "other")}, "", "redis", ""},
		"a file took the name":       {brokers{redis, {Name: "pubsub", Broker: plain{}}, raft("a")}, "", "a", "a"},
		"named":                      {brokers{redis, raft("pubsub"), raft("a")}, "a", "a", "a"},
		"the broker is named":        {brokers{redis, raft("pubsub")}, "redis", "redis", ""},
		"named, but absent":          {brokers{redis, raft("pubsub")}, "b", "", ""},
		"named, but of another app":  {brokers{redis, raft("pubsub"), raft("a", "other")}, "a", "", ""},
	} {
		for effects, want := range map[bool]string{false: c.outside, true: c.transaction} {
			got := ""
			if i := relayed(c.all, "shop", &state.Instance{Effects: effects,
				Outbox: &state.Outbox{PubSub: "redis", Topic: "orders", Internal: c.internal}}); i != nil {
				got = i.Name
			}
			if got != want {
				t.Errorf("%s, the store takes part in transactions: %t: %q, want %q", name, effects, got, want)
			}
		}
	}
}
