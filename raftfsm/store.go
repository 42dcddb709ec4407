package raftfsm

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/kv"
)

// MaxRequest is the greatest size in bytes of one write with all its operations. A write
// larger than an entry's usual bound travels as an entry of its own. raft-wal can read back
// entries of 64 MiB with everything around them, and no larger ones, so some room is left.
const MaxRequest = 64<<20 - 64<<10

// maxPage is the greatest number of keys in one page of a listing.
const maxPage = 1000

// Store is one state store of type state.raft. Several share the groups of a Host; each
// is identified in the whole cluster by namespace and name. Safe for concurrent use.
type Store struct {
	host *Host
	id   string // namespace "/" name

	closed atomic.Bool
}

var (
	_ state.Store      = (*Store)(nil)
	_ state.Transactor = (*Store)(nil)
	_ state.BulkGetter = (*Store)(nil)
	_ state.Lister     = (*Store)(nil)
	_ state.Featurer   = (*Store)(nil)
)

// Store returns the store of that namespace and name. It exists as soon as it is asked for.
func (h *Host) Store(namespace, name string) *Store {
	return &Store{host: h, id: namespace + "/" + name}
}

// Features names what the store can do.
func (s *Store) Features() []state.Feature {
	return []state.Feature{state.FeatureETag, state.FeatureTransactional, state.FeatureTTL}
}

// Close refuses later calls. The Host owns groups and files, which stay open.
func (s *Store) Close() error {
	s.closed.Store(true)
	return nil
}

// enter refuses calls to a closed store and calls that nobody waits for any more.
func (s *Store) enter(ctx context.Context, op string) error {
	if s.closed.Load() {
		return fault.New(fault.Unavailable, op, "the store is closed")
	}
	if err := ctx.Err(); err != nil {
		return &fault.Error{Code: fault.Timeout, Op: op, Msg: "the call had ended before it began", Err: err}
	}
	return nil
}

// Get reads one key.
func (s *Store) Get(ctx context.Context, r state.GetRequest) (state.Item, error) {
	if err := s.enter(ctx, "raftfsm.Get"); err != nil {
		return state.Item{}, err
	}
	n, err := s.host.partitions(ctx)
	if err != nil {
		return state.Item{}, err
	}
	q := queryOne(s.id, r.Key)
	proof, err := s.host.read(ctx, partitionOf(s.id, r.Key, n), &r.ReadOptions, q)
	if err != nil {
		return state.Item{}, err
	}
	item := toItem(r.Key, &q.values[0])
	item.Proof = proof
	return item, nil
}

func toItem(key string, v *kv.Value) state.Item {
	if !v.Found {
		return state.Item{Key: key}
	}
	return state.Item{Key: key, Value: v.Value, ContentType: v.ContentType, ETag: etag(v.Revision), Expires: expiry(v.ExpireAt)}
}

func etag(revision uint64) string { return strconv.FormatUint(revision, 10) }

func expiry(ms uint64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(min(ms, 1<<62))).UTC()
}

// BulkGet reads many keys: those of one group at one instant, different groups one after
// the other, each at the level asked for.
func (s *Store) BulkGet(ctx context.Context, r state.BulkGetRequest) ([]state.Item, error) {
	if err := s.enter(ctx, "raftfsm.BulkGet"); err != nil {
		return nil, err
	}
	n, err := s.host.partitions(ctx)
	if err != nil {
		return nil, err
	}
	parts := map[uint32][]int{}
	for i, k := range r.Keys {
		p := partitionOf(s.id, k, n)
		parts[p] = append(parts[p], i)
	}
	items := make([]state.Item, len(r.Keys))
	for p := range n {
		if where := parts[p]; len(where) > 0 {
			if err := s.bulkGet(ctx, p, &r, where, items); err != nil {
				return nil, err
			}
			r.Session = items[where[0]].Session // the next group's token goes on from this one
		}
	}
	for i := range items {
		items[i].Session = r.Session
	}
	return items, nil
}

func (s *Store) bulkGet(ctx context.Context, p uint32, r *state.BulkGetRequest, where []int, items []state.Item) error {
	keys := make([]string, len(where))
	for i, w := range where {
		keys[i] = r.Keys[w]
	}
	q := query{kind: queryMany, store: s.id, keys: keys}
	proof, err := s.host.read(ctx, p, &r.ReadOptions, &q)
	if err != nil {
		return err
	}
	for i, w := range where {
		items[w] = toItem(keys[i], &q.values[i])
		items[w].Proof = proof
	}
	return nil
}

// List pages through keys of one partition: the prefix must reach beyond the first "||",
// or the store must have a single partition.
func (s *Store) List(ctx context.Context, r state.ListRequest) (state.Page, error) {
	if err := s.enter(ctx, "raftfsm.List"); err != nil {
		return state.Page{}, err
	}
	n, err := s.host.partitions(ctx)
	if err != nil {
		return state.Page{}, err
	}
	p, err := s.listPartition(r.Prefix, n)
	if err != nil {
		return state.Page{}, err
	}
	q := query{kind: queryList, store: s.id, prefix: r.Prefix, after: r.After, limit: r.Limit}
	if q.limit <= 0 || q.limit > maxPage {
		q.limit = maxPage
	}
	proof, err := s.host.read(ctx, p, &r.ReadOptions, &q)
	if err != nil {
		return state.Page{}, err
	}
	found := q.listed
	page := state.Page{Items: make([]state.Item, len(found)), More: q.more, Proof: proof}
	for i := range found {
		page.Items[i] = state.Item{Key: found[i].Key, ETag: etag(found[i].Revision), Expires: expiry(found[i].ExpireAt)}
	}
	return page, nil
}

// Set writes all items or none.
func (s *Store) Set(ctx context.Context, r state.SetRequest) (state.Written, error) {
	ops := make([]command.Op, len(r.Items))
	for i := range r.Items {
		ops[i] = s.set(&r.Items[i])
	}
	return s.write(ctx, ops, r.Consistency, r.Session, r.RequestID)
}

// Delete removes one key.
func (s *Store) Delete(ctx context.Context, r state.DeleteRequest) (state.Written, error) {
	op := s.del(r.Key, r.ETag)
	return s.write(ctx, []command.Op{op}, r.Consistency, r.Session, r.RequestID)
}

// Transact applies all operations or none. Its outcome is always waited for.
func (s *Store) Transact(ctx context.Context, r state.TransactRequest) (state.Written, error) {
	ops := make([]command.Op, len(r.Operations))
	for i := range r.Operations {
		o := &r.Operations[i]
		if o.Kind == state.Remove {
			ops[i] = s.del(o.Key, o.ETag)
		} else {
			ops[i] = s.set(&o.Write)
		}
	}
	return s.write(ctx, ops, state.Strong, r.Session, r.RequestID)
}

func (s *Store) set(w *state.Write) command.Op {
	op := command.Op{Kind: command.OpSet, Store: s.id, Key: w.Key, Value: w.Value, ContentType: w.ContentType}
	switch {
	case w.ETag != "":
		op.Cond, op.Revision = condition(w.ETag)
	case w.Concurrency == state.FirstWrite:
		op.Cond = command.CondAbsent
	}
	if !w.TTL.At.IsZero() {
		op.ExpireAt = uint64(max(w.TTL.At.UnixMilli(), 1))
	} else if w.TTL.Set && w.TTL.Seconds > 0 {
		op.TTL = uint64(w.TTL.Seconds) * 1000
	}
	return op
}

func (s *Store) del(key, tag string) command.Op {
	op := command.Op{Kind: command.OpDelete, Store: s.id, Key: key}
	if tag != "" {
		op.Cond, op.Revision = condition(tag)
	}
	return op
}

// condition turns an ETag into the revision it names. An ETag is opaque: one that this
// store never gave out matches nothing.
func condition(tag string) (command.Cond, uint64) {
	rev, err := strconv.ParseUint(tag, 10, 64)
	if err != nil || etag(rev) != tag {
		return command.CondNever, 0
	}
	return command.CondRevision, rev
}

// write sends operations as one request.
func (s *Store) write(ctx context.Context, ops []command.Op, c state.Consistency, token, requestID string) (state.Written, error) {
	if err := s.enter(ctx, "raftfsm.write"); err != nil {
		return state.Written{}, err
	}
	tag, err := s.host.belong(ctx)
	if err != nil {
		return state.Written{}, err
	}
	sess, foreign, err := s.host.tokens.parse(token, tag)
	if err != nil {
		return state.Written{}, err
	}
	if len(ops) == 0 {
		return state.Written{Proof: state.Proof{Session: token}}, nil
	}
	n, err := s.host.partitions(ctx)
	if err != nil {
		return state.Written{}, err
	}
	p, err := onePartition(s.id, ops, func(o *command.Op) string { return o.Key }, n)
	if err != nil {
		return state.Written{}, err
	}
	req := &command.Request{Kind: command.KindWrite, Ops: ops}
	if requestID != "" {
		req.Client = command.ClientID{Scope: s.id + "/" + prefixOf(ops[0].Key), ID: requestID}
	}
	if n := command.RequestSize(req); n > MaxRequest {
		return state.Written{}, &fault.Error{Code: fault.TooLarge, Op: "raftfsm.write", Key: ops[0].Key,
			Msg: fmt.Sprintf("the write has %d bytes, the limit is %d", n, MaxRequest), Hint: "split it"}
	}
	ack := group.Committed
	if c != state.Strong && requestID == "" && unconditional(ops) {
		ack = group.Durable
	}
	a, err := s.host.write(ctx, p, req, ack)
	if err != nil {
		return state.Written{}, err
	}
	at := seen{group: p, pos: a.Position, committed: a.Result.Outcome != 0}
	if at.committed {
		if err := outcome(&a.Result); err != nil {
			return state.Written{}, err
		}
	}
	s.host.noteWrite(at, ops)
	if foreign {
		token = "" // nothing of it counts here
	}
	written := state.Written{Proof: state.Proof{Level: state.SessionLevel, Age: -1, Session: s.host.tokens.after(token, sess, at, tag)}}
	if at.committed {
		written.ETags = etags(a.Result.Revisions)
	}
	if ack == group.Committed {
		written.Level, written.Age = state.Linearizable, 0
	}
	return written, nil
}

// unconditional reports whether the outcome of every operation is known beforehand.
func unconditional(ops []command.Op) bool {
	for i := range ops {
		if ops[i].Cond != command.CondNone {
			return false
		}
	}
	return true
}

func outcome(r *kv.Result) error {
	switch r.Outcome {
	case kv.Applied:
		return nil
	case kv.Conflict:
		return &fault.Error{Code: fault.Conflict, Op: "raftfsm.write", Key: r.Key,
			Msg: "the condition on key " + strconv.Quote(r.Key) + " did not hold"}
	case kv.Rejected:
		return &fault.Error{Code: fault.Invalid, Op: "raftfsm.write", Msg: "the request id was used before for other operations",
			Hint: "use a new Quorate-Request-Id for every request that is not a retry"}
	default:
		return fault.New(fault.Internal, "raftfsm.write", "the state machine answered "+r.Outcome.String())
	}
}

func etags(revisions []uint64) []string {
	out := make([]string, len(revisions))
	for i, r := range revisions {
		if r != 0 {
			out[i] = etag(r)
		}
	}
	return out
}
