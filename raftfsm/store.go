package raftfsm

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/component/lock"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/actors"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/locks"
	"github.com/quorate/quorate/raftfsm/records"
	"github.com/quorate/quorate/raftfsm/session"
	"github.com/quorate/quorate/raftfsm/topics"
)

// MaxRequest is the maximum size in bytes of one write with all its operations. It is below 64 MiB, the limit of
// raft-wal for an entry.
const MaxRequest = 64<<20 - 64<<10

// maxAnswer is the maximum total size in bytes of the values in one read for another node. It is not below the limit of
// the API, so every read that the API permits also works at another node.
const maxAnswer = 32 << 20

// maxPage is the maximum number of keys in one page of a listing.
const maxPage = records.MaxPage

// Store is one state store of type state.raft. Its namespace and name identify it in the whole cluster. Several stores
// share the groups of a Host. A Store is safe for concurrent use.
type Store struct {
	router *router
	id     string // namespace "/" name

	history state.HistoryBounds
	closed  atomic.Bool
}

var (
	_ state.Store      = (*Store)(nil)
	_ state.Transactor = (*Store)(nil)
	_ state.BulkGetter = (*Store)(nil)
	_ state.Lister     = (*Store)(nil)
	_ state.Featurer   = (*Store)(nil)
)

// Store returns the store with that namespace and name. A store needs no creation.
func (h *Host) Store(namespace, name string) *Store {
	return &Store{router: h.router, id: namespace + "/" + name}
}

// Features returns the features of the store.
func (s *Store) Features() []state.Feature {
	return []state.Feature{state.FeatureETag, state.FeatureTransactional, state.FeatureTTL}
}

// Close makes later calls fail. Groups and files belong to the Host and stay open.
func (s *Store) Close() error {
	s.closed.Store(true)
	return nil
}

// enter returns an error if the store is closed or ctx has ended.
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
	n, err := s.router.replica.waitPartitions(ctx)
	if err != nil {
		return state.Item{}, err
	}
	q := queryOne(s.id, r.Key)
	q.maxBytes = r.MaxValue
	proof, err := s.router.read(ctx, partitionOf(s.id, r.Key, n), &r.ReadOptions, q)
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
	return state.Item{Key: key, Value: v.Value, Size: int64(v.Size), ContentType: v.ContentType, ETag: etag(v.Revision),
		Expires: expiry(v.ExpireAt)}
}

func etag(revision uint64) string { return strconv.FormatUint(revision, 10) }

func expiry(ms uint64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(min(ms, 1<<62))).UTC()
}

// BulkGet reads many keys at the requested consistency level. All keys of one group are read in one consistent view.
// Groups are read one after the other, so values of different groups may be from different moments.
func (s *Store) BulkGet(ctx context.Context, r state.BulkGetRequest) ([]state.Item, error) {
	const op = "raftfsm.BulkGet"
	if err := s.enter(ctx, op); err != nil {
		return nil, err
	}
	n, err := s.router.replica.waitPartitions(ctx)
	if err != nil {
		return nil, err
	}
	parts := map[uint32][]int{}
	for i, k := range r.Keys {
		p := partitionOf(s.id, k, n)
		parts[p] = append(parts[p], i)
	}
	items := make([]state.Item, len(r.Keys))
	limit, size := r.MaxBytes, int64(0)
	for p := range n {
		if where := parts[p]; len(where) > 0 {
			if limit > 0 {
				r.MaxBytes = max(limit-size, 1) // 0 would be no limit
			}
			err := s.bulkGet(ctx, p, &r, where, items)
			for _, w := range where {
				size += int64(len(items[w].Value))
			}
			switch {
			case fault.Is(err, fault.TooLarge), limit > 0 && size > limit: // another server does not know the limit
				return nil, state.ValuesTooLarge(op, cmp.Or(limit, maxAnswer))
			case err != nil:
				return nil, err
			}
			r.Session = items[where[0]].Session // the next group starts from this token
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
	q := query{kind: queryMany, store: s.id, keys: keys, maxBytes: r.MaxBytes}
	proof, err := s.router.read(ctx, p, &r.ReadOptions, &q)
	if err != nil {
		return err
	}
	for i, w := range where {
		items[w] = toItem(keys[i], &q.values[i])
		items[w].Proof = proof
	}
	return nil
}

// List returns one page of the keys that begin with r.Prefix. If the cluster has several partitions, the prefix must
// contain "||". Otherwise List returns fault.Invalid.
func (s *Store) List(ctx context.Context, r state.ListRequest) (state.Page, error) {
	if err := s.enter(ctx, "raftfsm.List"); err != nil {
		return state.Page{}, err
	}
	n, err := s.router.replica.waitPartitions(ctx)
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
	proof, err := s.router.read(ctx, p, &r.ReadOptions, &q)
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
	return s.write(ctx, writing{ops: ops, locks: r.Locks, consistency: r.Consistency, session: r.Session,
		requestID: r.RequestID})
}

// Delete removes one key.
func (s *Store) Delete(ctx context.Context, r state.DeleteRequest) (state.Written, error) {
	op := s.del(r.Key, r.ETag)
	return s.write(ctx, writing{ops: []command.Op{op}, locks: r.Locks, consistency: r.Consistency,
		session: r.Session, requestID: r.RequestID})
}

// Transact applies all operations or none. It always writes with strong consistency.
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
	w := writing{ops: ops, locks: r.Locks, actor: r.Actor, consistency: state.Strong, session: r.Session,
		requestID: r.RequestID}
	for _, e := range r.Effects {
		known, ok := e.(topics.Effect)
		if !ok {
			return state.Written{}, fault.New(fault.Unimplemented, "raftfsm.Transact",
				"this store does not have "+e.Effect()+" in its transactions")
		}
		w.effects = append(w.effects, known)
	}
	return s.write(ctx, w)
}

func (s *Store) set(w *state.Write) command.Op {
	op := command.Op{Kind: command.OpSet, Store: s.id, Key: w.Key, Value: w.Value, ContentType: w.ContentType}
	switch {
	case w.ETag != "":
		op.Cond, op.Revision = condition(w.ETag)
	case w.Concurrency == state.FirstWrite:
		op.Cond = command.CondAbsent
	}
	if w.TTL.At != nil {
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

// condition converts an ETag into a condition and a revision. For an ETag that this store never issues, it returns
// CondNever, so that the write fails with a conflict.
func condition(tag string) (command.Cond, uint64) {
	rev, err := strconv.ParseUint(tag, 10, 64)
	if err != nil || etag(rev) != tag {
		return command.CondNever, 0
	}
	return command.CondRevision, rev
}

// writing is one write of a client.
type writing struct {
	ops         []command.Op
	locks       []state.LockToken
	actor       *state.ActorEpoch
	effects     []topics.Effect
	consistency state.Consistency
	session     string
	requestID   string
}

// write sends the operations of w to their group as one request. It returns fault.Invalid if the keys of the
// operations are in different groups.
func (s *Store) write(ctx context.Context, w writing) (state.Written, error) {
	if err := s.enter(ctx, "raftfsm.write"); err != nil {
		return state.Written{}, err
	}
	tag, err := s.router.node.wait(ctx)
	if err != nil {
		return state.Written{}, err
	}
	n, err := s.router.replica.waitPartitions(ctx)
	if err != nil {
		return state.Written{}, err
	}
	cluster := session.Cluster{Tag: tag, Groups: n}
	sess, foreign, err := s.router.tokens.Parse(w.session, cluster)
	if err != nil {
		return state.Written{}, err
	}
	if len(w.ops) == 0 {
		return state.Written{Proof: state.Proof{Session: w.session}}, nil
	}
	p, err := onePartition(s.id, w.ops, func(o *command.Op) string { return o.Key }, n)
	if err != nil {
		return state.Written{}, err
	}
	req, err := s.request(&w, p, n)
	if err != nil {
		return state.Written{}, err
	}
	ack := group.Committed
	if w.consistency != state.Strong && w.requestID == "" && unconditional(req.Ops) {
		ack = group.Durable
	}
	var term uint64
	if seen := sess.Of(p); len(seen) > 0 {
		term = seen[len(seen)-1].Pos.Term
	}
	a, err := s.router.writeAfter(ctx, p, req, ack, term)
	if err != nil {
		return state.Written{}, err
	}
	at := session.Seen{Group: p, Pos: a.Position, Committed: a.Result.Outcome != 0}
	if at.Committed {
		if err := w.outcome(s.id, p, &a.Result); err != nil {
			return state.Written{}, err
		}
		for _, e := range w.effects {
			e.Applied(p)
		}
	}
	s.router.noteWrite(at, w.ops)
	s.router.noteSeen(at)
	token := w.session
	if foreign {
		token = "" // positions of another cluster do not count here
	}
	written := state.Written{Proof: state.Proof{Level: state.SessionLevel, Age: -1,
		Session: s.router.tokens.After(token, sess, at, cluster)}}
	if at.Committed {
		// Count from the end: a stored result can be that of an attempt with more or fewer effects, which come first.
		r := a.Result.Revisions
		written.ETags = etags(r[max(0, len(r)-len(w.ops)):])
	}
	if ack == group.Committed {
		written.Level, written.Age = state.Linearizable, 0
	}
	return written, nil
}

// request returns the request that performs a write in the group p, one of n groups. It contains the operations of
// w.effects, then the checks of locks and of the actor, and then w.ops.
func (s *Store) request(w *writing, p, n uint32) (*command.Request, error) {
	req := &command.Request{Kind: command.KindWrite, Ops: w.ops}
	if len(w.locks) > 0 || w.actor != nil {
		for i := range w.locks {
			if l := &w.locks[i]; partitionOf(s.id, l.Prefix+"||", n) != p {
				return nil, &fault.Error{Code: fault.Invalid, Op: "raftfsm.write", Key: w.ops[0].Key,
					Msg:  "the lock " + strconv.Quote(l.Resource) + " and the key lie in different partitions",
					Hint: "use a lock of the application that owns the key"}
			}
		}
		req.Ops = append(append(w.checks(s.id), w.epoch(s.id)...), w.ops...)
	}
	for _, e := range w.effects {
		ops, err := e.Ops(p)
		if err != nil {
			return nil, err
		}
		req.Ops = append(ops, req.Ops...)
	}
	if w.requestID != "" {
		req.Client = command.ClientID{Scope: s.id + "/" + state.PrefixOf(w.ops[0].Key), ID: w.requestID}
	}
	return req, nil
}

// checks returns the operations that check the locks of a write.
func (w *writing) checks(store string) []command.Op {
	ops := make([]command.Op, len(w.locks), len(w.locks)+len(w.ops))
	for i := range w.locks {
		l := &w.locks[i]
		key := lock.Key{Prefix: l.Prefix, Resource: l.Resource}
		ops[i] = locks.Check(locks.RecordName(store, l.Component, key), l.Token)
	}
	return ops
}

// epoch returns the operations that check the owner and the epoch of the actor for which w writes. It returns nil if w
// is not a write for an actor.
func (w *writing) epoch(store string) []command.Op {
	e := w.actor
	if e == nil {
		return nil
	}
	a := actors.Actor{Scope: actors.ScopeOf(store, e.App), Type: e.Type, ID: e.ID}
	return actors.Check(a, e.Epoch, e.Host, e.Revision)
}

// outcome returns the error of the write w, whose result is r. It returns nil if the write was applied. store is the id
// of the store, and gid is the group.
func (w *writing) outcome(store string, gid uint32, r *kv.Result) error {
	for _, e := range w.effects {
		if r.Outcome != kv.Conflict {
			break
		}
		if err := e.Refused(gid, r.Key); err != nil {
			if fault.Is(err, fault.DeliverySettled) {
				for _, all := range w.effects {
					all.Unsettled()
				}
			}
			return err
		}
	}
	if r.Outcome == kv.Conflict && slices.ContainsFunc(w.epoch(store), func(o command.Op) bool {
		return o.Key == r.Key
	}) {
		return errActorMoved()
	}
	return outcome(r, w.checks(store))
}

// unconditional reports whether no operation has a condition.
func unconditional(ops []command.Op) bool {
	for i := range ops {
		if ops[i].Cond != command.CondNone {
			return false
		}
	}
	return true
}

// outcome returns the error of a write with the result r, or nil if the write was applied. The operations in checks are
// those that check the locks of the write. If one of them has failed, the error is fault.LockLost.
func outcome(r *kv.Result, checks []command.Op) error {
	switch r.Outcome {
	case kv.Applied:
		return nil
	case kv.Conflict:
		if slices.ContainsFunc(checks, func(o command.Op) bool { return o.Key == r.Key }) {
			return &fault.Error{Code: fault.LockLost, Op: "raftfsm.write",
				Msg:  "the lock that protects the write does not have this token any more; nothing was written",
				Hint: "acquire the lock again, and read the values again before you write them"}
		}
		return &fault.Error{Code: fault.Conflict, Op: "raftfsm.write", Key: r.Key,
			Msg: "the condition on key " + strconv.Quote(r.Key) + " did not hold"}
	case kv.Rejected:
		return &fault.Error{Code: fault.Invalid, Op: "raftfsm.write",
			Msg:  "the request id was used before for other operations",
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
