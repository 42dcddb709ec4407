package state

import (
	"context"
	"fmt"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// Names of component metadata that every state store supports. The loader declares these names (see
// loader.StateFields), parses their values into Settings and applies them. A store implementation can ignore them.
const (
	MetadataKeyPrefix          = "keyPrefix"
	MetadataDefaultConsistency = "defaultConsistency"
	MetadataDefaultTTL         = "defaultTTLInSeconds"
	MetadataMaxValueSize       = "maxValueSize"
	MetadataActorStateStore    = "actorStateStore"
	MetadataOutboxPubSub       = "outboxPublishPubsub"
	MetadataOutboxTopic        = "outboxPublishTopic"
	MetadataOutboxInternal     = "outboxPubsub"
	MetadataOutboxDiscard      = "outboxDiscardWhenMissingState" // no effect: such events are always discarded
)

// Settings are the settings that the component file of every state store can contain. The zero value has the defaults.
type Settings struct {
	KeyPrefix          KeyPrefix
	DefaultConsistency Consistency   // for requests without a level; DefaultConsistency = Eventual
	DefaultTTL         time.Duration // for writes without a TTL, in whole seconds; 0 = none
	MaxValueSize       int64         // bytes; 0 = no limit
	ActorStore         bool
	Outbox             *Outbox // nil = none
}

// Consistency returns the level that applies to a request: the level in the request, or otherwise the default of the
// store.
func (s Settings) Consistency(asked Consistency) Consistency {
	switch {
	case asked != DefaultConsistency:
		return asked
	case s.DefaultConsistency != DefaultConsistency:
		return s.DefaultConsistency
	}
	return Eventual
}

// WithSettings wraps a store so that DefaultConsistency, DefaultTTL and MaxValueSize apply to its requests. The other
// settings are left to the caller. If a value is larger than MaxValueSize, a write returns fault.TooLarge with the key.
//
// The wrapper has the same Abilities as the store. If none of the three settings has an effect, WithSettings returns
// the store itself.
func WithSettings(store Store, s Settings) Store {
	if s.Consistency(DefaultConsistency) == Eventual && s.DefaultTTL == 0 && s.MaxValueSize == 0 {
		return store
	}
	below := AbilitiesOf(store)
	return wrap(&configured{Store: store, below: below, settings: s}, below)
}

type configured struct {
	Store
	below    Abilities // abilities of the wrapped store
	settings Settings
}

// Get implements Store.
func (c *configured) Get(ctx context.Context, r GetRequest) (Item, error) {
	r.Consistency = c.settings.Consistency(r.Consistency)
	return c.Store.Get(ctx, r)
}

// Set implements Store.
func (c *configured) Set(ctx context.Context, r SetRequest) (Written, error) {
	for i := range r.Items {
		if err := c.fits(&r.Items[i]); err != nil {
			return Written{}, err
		}
	}
	r.Consistency = c.settings.Consistency(r.Consistency)
	if c.settings.DefaultTTL > 0 {
		items := append([]Write(nil), r.Items...) // the request belongs to the caller
		for i := range items {
			c.expire(&items[i])
		}
		r.Items = items
	}
	return c.Store.Set(ctx, r)
}

// Delete implements Store.
func (c *configured) Delete(ctx context.Context, r DeleteRequest) (Written, error) {
	r.Consistency = c.settings.Consistency(r.Consistency)
	return c.Store.Delete(ctx, r)
}

// Transact implements Transactor.
func (c *configured) Transact(ctx context.Context, r TransactRequest) (Written, error) {
	for i := range r.Operations {
		if r.Operations[i].Kind != Upsert {
			continue
		}
		if err := c.fits(&r.Operations[i].Write); err != nil {
			return Written{}, err
		}
	}
	r.Consistency = c.settings.Consistency(r.Consistency)
	if c.settings.DefaultTTL > 0 {
		ops := append([]Operation(nil), r.Operations...) // the request belongs to the caller
		for i := range ops {
			if ops[i].Kind == Upsert {
				c.expire(&ops[i].Write)
			}
		}
		r.Operations = ops
	}
	return c.below.Transactor.Transact(ctx, r)
}

// BulkGet implements BulkGetter.
func (c *configured) BulkGet(ctx context.Context, r BulkGetRequest) ([]Item, error) {
	r.Consistency = c.settings.Consistency(r.Consistency)
	return c.below.BulkGetter.BulkGet(ctx, r)
}

// List implements Lister.
func (c *configured) List(ctx context.Context, r ListRequest) (Page, error) {
	r.Consistency = c.settings.Consistency(r.Consistency)
	return c.below.Lister.List(ctx, r)
}

// Features implements Featurer.
func (c *configured) Features() []Feature { return c.below.Featurer.Features() }

func (c *configured) fits(w *Write) error {
	limit := c.settings.MaxValueSize
	if limit == 0 || int64(len(w.Value)) <= limit {
		return nil
	}
	return &fault.Error{Code: fault.TooLarge, Op: "state.Set", Key: w.Key,
		Msg:  fmt.Sprintf("the value has %d bytes; %s of this store is %d", len(w.Value), MetadataMaxValueSize, limit),
		Hint: "store less in one key, or raise the limit in the component file"}
}

func (c *configured) expire(w *Write) {
	if !w.TTL.Set {
		w.TTL = TTL{Set: true, Seconds: int64(c.settings.DefaultTTL / time.Second)}
	}
}
