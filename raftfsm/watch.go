package raftfsm

import (
	"context"
	"fmt"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/feed"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/kv"
)

var _ state.Watcher = (*Store)(nil)

// KeepHistory limits the age and size of the history that the store keeps for its watchers, and returns s. Call it
// before the first watch.
func (s *Store) KeepHistory(b state.HistoryBounds) *Store {
	s.history = b
	return s
}

// Watch implements state.Watcher. It reads from the replica of this node, or from a server if this node has no
// replica.
func (s *Store) Watch(ctx context.Context, r state.WatchRequest) (state.Watch, error) {
	if err := s.enter(ctx, "raftfsm.Watch"); err != nil {
		return nil, err
	}
	if _, err := s.router.node.wait(ctx); err != nil {
		return nil, err
	}
	n, err := s.router.replica.waitPartitions(ctx)
	if err != nil {
		return nil, err
	}
	prefix, err := watchedPrefix(&r)
	if err != nil {
		return nil, err
	}
	at := history{store: s.id, prefix: prefix, group: partitionOf(s.id, prefix+"||", n)}
	if prefix == "" {
		at.group = partitionOf(s.id, "", n)
	}
	src := &source{router: s.router, at: at, bounds: s.history.WithDefaults(), replica: s.router.replica.history(at)}
	return s.router.hub.Watch(ctx, s.id+"\x00"+prefix, src, r)
}

// watchedPrefix returns the key prefix that all keys of a watch have in common, for example "app1" for the keys
// "app1||x" and "app1||y". The history of this prefix has all changes of the keys. watchedPrefix returns fault.Invalid
// if the keys may have different prefixes.
func watchedPrefix(r *state.WatchRequest) (string, error) {
	if len(r.Keys) == 0 {
		if prefix := state.PrefixOf(r.Prefix); prefix != "" {
			return prefix, nil
		}
		return "", &fault.Error{Code: fault.Invalid, Op: "raftfsm.Watch", Key: r.Prefix,
			Msg:  "keys with this prefix may lie in several partitions",
			Hint: "watch the keys of one application (key prefix with \"||\") only, or single keys"}
	}
	prefix := state.PrefixOf(r.Keys[0])
	for _, k := range r.Keys {
		if state.PrefixOf(k) != prefix {
			return "", &fault.Error{Code: fault.Invalid, Op: "raftfsm.Watch", Key: k,
				Msg: "the keys of one watch lie in different partitions", Hint: "use one watch for each key prefix"}
		}
	}
	return prefix, nil
}

// history identifies the list of recent changes that a group keeps for watchers. There is one such list for each store
// and key prefix.
type history struct {
	store, prefix string
	group         uint32
}

// historyReader reads a history from the replica of this node, or from a server.
type historyReader interface {
	read(ctx context.Context, after uint64, maxBytes int) (kv.Changes, error)
	// wait returns when there may be changes after a revision, or when ctx ends.
	wait(ctx context.Context, after uint64)
	scan(ctx context.Context, prefix string) (feed.Scan, error)
}

// source implements feed.Source.
type source struct {
	router  *router
	at      history
	bounds  state.HistoryBounds
	replica historyReader
}

// Cluster implements feed.Source.
func (s *source) Cluster() string {
	id := s.router.node.current().Cluster
	return fmt.Sprintf("%.8s", id)
}

// Read implements feed.Source.
func (s *source) Read(ctx context.Context, after uint64, maxBytes int) (feed.Page, error) {
	c, err := s.replica.read(ctx, after, maxBytes)
	if err != nil {
		return feed.Page{}, err
	}
	return feed.Page{Changes: toChanges(c.Items), Kept: c.Kept, ID: c.ID, Floor: c.Floor, Revision: c.Revision,
		Restored: c.Restored, Seen: c.Seen}, nil
}

func toChanges(items []kv.Change) []state.Change {
	out := make([]state.Change, len(items))
	for i := range items {
		c := &items[i]
		out[i] = state.Change{Revision: c.Revision, Deleted: c.Deleted, Expired: c.Expired, Last: c.Last,
			Item: state.Item{Key: c.Key, Value: c.Value, ContentType: c.ContentType, ETag: etag(c.Revision),
				Expires: expiry(c.ExpireAt)}}
	}
	return out
}

// Wait implements feed.Source.
func (s *source) Wait(ctx context.Context, after uint64) { s.replica.wait(ctx, after) }

// Scan implements feed.Source.
func (s *source) Scan(ctx context.Context, prefix string) (feed.Scan, error) {
	return s.replica.scan(ctx, prefix)
}

// Extend implements feed.Source.
func (s *source) Extend(ctx context.Context) error {
	age, size := uint64(s.bounds.Age.Milliseconds()), uint64(s.bounds.Bytes) //nolint:gosec // positive
	a, err := s.router.write(ctx, s.at.group, &command.Request{Kind: command.KindWatch,
		Watch: &command.Watch{Store: s.at.store, Prefix: s.at.prefix, Age: max(age, 1), Bytes: size}}, group.Committed)
	if err != nil {
		return err
	}
	return outcome(&a.Result, nil)
}

// history implements replica.
func (s *server) history(at history) historyReader { return &localHistory{s.groups[at.group], at} }

// localHistory implements historyReader with the replica of this node.
type localHistory struct {
	group *group.Group
	at    history
}

func (l *localHistory) read(ctx context.Context, after uint64, maxBytes int) (kv.Changes, error) {
	for {
		m := l.group.Machine()
		c, err := m.Changes(l.at.store, l.at.prefix, after, maxBytes)
		if err == nil {
			err = l.group.Trusted()
		}
		if err != nil && m != l.group.Machine() && ctx.Err() == nil {
			continue // the machine was replaced by a received one
		}
		return c, err
	}
}

func (l *localHistory) wait(ctx context.Context, after uint64) {
	m := l.group.Machine()
	n := m.Listen(l.at.store, l.at.prefix)
	defer n.Stop()
	// A change may have come before Listen.
	if c, err := l.read(ctx, after, 1); err != nil || !c.Kept || len(c.Items) > 0 {
		select {
		case <-n.C:
		case <-ctx.Done():
		case <-time.After(retryPause / 10):
		}
		return
	}
	select {
	case <-n.C:
	case <-n.Closed:
	case <-ctx.Done():
	}
}

func (l *localHistory) scan(_ context.Context, prefix string) (feed.Scan, error) {
	s, err := l.group.Machine().Scan(l.at.store, prefix)
	if err != nil {
		return nil, err
	}
	return &localScan{s}, nil
}

// localScan implements feed.Scan.
type localScan struct{ scan *kv.Scan }

func (s *localScan) Revision() uint64 { return s.scan.Revision }

func (s *localScan) Close() { s.scan.Close() }

func (s *localScan) Next(_ context.Context, maxBytes int) ([]state.Change, bool, error) {
	items, more, err := s.scan.Next(maxBytes)
	return toChanges(items), more, err
}
