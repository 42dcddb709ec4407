package components

import (
	"context"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm"
)

// claimsStore is the name of the replicated store for claims. No component can have this name, because it contains a
// slash.
const claimsStore = "system/claims"

// claims ensures that only one node handles an event that all nodes of the cluster receive. Each node tries to create a
// key for the event in the store. The node that succeeds handles the event; all others get a conflict.
type claims struct {
	host      *raftfsm.Host
	namespace string
}

// Claim implements bindings.Claims.
func (c claims) Claim(ctx context.Context, key string, life time.Duration) (bool, error) {
	store := c.host.Store(c.namespace, claimsStore)
	_, err := store.Set(ctx, state.SetRequest{Consistency: state.Strong, Items: []state.Write{{
		Key: key, Value: []byte("1"), Concurrency: state.FirstWrite,
		TTL: state.TTL{Set: true, Seconds: int64(max(life/time.Second, 1))},
	}}})
	if fault.Is(err, fault.Conflict) {
		return false, nil
	}
	return err == nil, err
}
