package topics

import (
	"context"
	"slices"

	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/records"
)

// Lag returns how many messages of a topic a consumer group has not settled. It lists the keys of all messages after
// the cursor of the group, so its cost grows with the number of these messages. It returns 0 if the group does not
// exist.
func (b *Broker) Lag(ctx context.Context, topic, group string) (n int, err error) {
	groups, err := b.access.Groups(ctx)
	if err != nil {
		return 0, err
	}
	for gid := range groups {
		one, err := b.lag(ctx, Topic{Group: gid, Store: b.store, Name: topic}, group)
		if err != nil {
			return 0, err
		}
		n += one
	}
	return n, nil
}

func (b *Broker) lag(ctx context.Context, t Topic, group string) (n int, err error) {
	values, err := b.access.Values(ctx, t.Group, kv.TopicStore, []string{t.key(tableGroup, group)})
	if err != nil || !values[0].Found {
		return 0, err
	}
	c, ok := readCursor(values[0].Value, values[0].Revision)
	if !ok {
		return 0, errRecord("a cursor", t)
	}
	parked, err := b.list(ctx, t.Group, t.parkedPrefix(group), "")
	if err != nil {
		return 0, err
	}
	later, err := b.list(ctx, t.Group, t.key(tableMessage, ""), t.messageKey(c.upto))
	if err != nil {
		return 0, err
	}
	open := c.open
	for _, key := range parked {
		if !slices.Contains(open, offsetOf(key)) {
			n++
		}
	}
	return n + len(open) + len(later), nil
}

// list returns all keys that begin with prefix and are greater than after.
func (b *Broker) list(ctx context.Context, gid uint32, prefix, after string) (all []string, err error) {
	for more := true; more; {
		var found []string
		found, more, err = b.access.List(ctx, gid, kv.TopicStore,
			records.Page{Prefix: prefix, After: after, Limit: records.MaxPage})
		if err != nil {
			return nil, err
		}
		if len(found) > 0 {
			after = found[len(found)-1]
		}
		all = append(all, found...)
	}
	return all, nil
}
