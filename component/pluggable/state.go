package pluggable

import (
	"context"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	components "github.com/dapr/dapr/pkg/proto/components/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/fault"
)

// maxETag is the largest ETag, in bytes. An ETag becomes a header of a response.
const maxETag = 1 << 10

// gatherers is the maximum number of keys that are read at the same time from a process without bulk reads.
const gatherers = 8

// store is a state store without transactions. It is safe for concurrent use.
type store struct {
	link     *link
	gate     outside.Gate
	now      func() time.Time
	features []state.Feature // features of the first connection
	most     atomic.Int64    // largest number of operations in a transaction; 0 = no limit
	noBulk   atomic.Bool     // the process has no bulk reads
}

// transactional is a store with transactions.
type transactional struct{ *store }

// OpenState opens a state store. It waits for the socket until the deadline of ctx.
func OpenState(ctx context.Context, o Options) (state.Store, error) {
	return openState(ctx, o, time.Now)
}

func openState(ctx context.Context, o Options, now func() time.Time) (state.Store, error) {
	s := &store{now: now}
	var once sync.Once
	var err error
	s.link, err = openLink(ctx, o, func(ctx context.Context, c *session) error {
		features, err := s.greet(ctx, c)
		if err != nil {
			return err
		}
		once.Do(func() { s.features = features })
		for _, f := range s.features {
			if !slices.Contains(features, f) {
				return &fault.Error{Code: fault.Invalid, Op: "pluggable.Features",
					Msg:  c.link.who() + " no longer has the feature " + string(f),
					Hint: "restart the node to use the component as it is now"}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if slices.Contains(s.features, state.FeatureTransactional) {
		return transactional{s}, nil
	}
	return s, nil
}

// greet initialises the process and returns its features.
func (s *store) greet(ctx context.Context, c *session) ([]state.Feature, error) {
	if err := c.need(components.StateStore_ServiceDesc.ServiceName); err != nil {
		return nil, err
	}
	client := components.NewStateStoreClient(c.conn)
	if _, err := client.Init(ctx, &components.InitRequest{Metadata: c.link.properties()}); err != nil {
		return nil, c.link.uninitialised(ctx, err)
	}
	out, err := client.Features(ctx, &components.FeaturesRequest{})
	if err != nil {
		return nil, c.link.uninitialised(ctx, err)
	}
	var features []state.Feature
	for _, name := range out.GetFeatures() {
		switch f := state.Feature(strings.ToUpper(name)); f {
		case state.FeatureETag, state.FeatureTTL:
			features = append(features, f)
		case state.FeatureTransactional:
			if c.has(components.TransactionalStateStore_ServiceDesc.ServiceName) {
				features = append(features, f)
			}
		}
	}
	slices.Sort(features)
	s.most.Store(0)
	if c.has(components.TransactionalStoreMultiMaxSize_ServiceDesc.ServiceName) {
		most, err := components.NewTransactionalStoreMultiMaxSizeClient(c.conn).MultiMaxSize(ctx,
			&components.MultiMaxSizeRequest{})
		if err == nil {
			s.most.Store(max(most.GetMaxSize(), 0))
		}
	}
	return slices.Compact(features), nil
}

// Features implements state.Featurer.
func (s *store) Features() []state.Feature { return slices.Clone(s.features) }

// Close implements state.Store.
func (s *store) Close() error {
	if s.gate.Close() {
		s.link.close()
	}
	return nil
}

// Ping implements state.Pinger.
func (s *store) Ping(ctx context.Context) error {
	failed := s.link.call(ctx, reading, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		_, err := components.NewStateStoreClient(conn).Ping(ctx, &components.PingRequest{})
		return err
	})
	if failed == nil || failed.code() == codes.Unimplemented {
		return nil
	}
	return s.link.fault("pluggable.Ping", "", failed, reading)
}

// PingInterval implements state.Pinger.
func (s *store) PingInterval() time.Duration { return outside.PingInterval }

// proof returns the state.Proof for each result of the component. Its level is Stale and its age is unknown, because
// the node does not know what consistency the component guarantees.
func proof() state.Proof { return state.Proof{Level: state.Stale, Age: -1} }

// Get implements state.Store.
func (s *store) Get(ctx context.Context, r state.GetRequest) (state.Item, error) {
	const op = "pluggable.Get"
	if err := s.gate.Enter(ctx, op); err != nil {
		return state.Item{}, err
	}
	var out *components.GetResponse
	failed := s.link.call(ctx, reading, func(ctx context.Context, conn grpc.ClientConnInterface) (err error) {
		out, err = components.NewStateStoreClient(conn).Get(ctx, getRequest(r.Key, &r.ReadOptions))
		return err
	})
	switch {
	case failed.code() == codes.NotFound:
		return state.Item{Key: r.Key, Proof: proof()}, nil
	case failed != nil:
		return state.Item{}, s.link.fault(op, r.Key, failed, reading)
	}
	return s.item(op, r.Key, out)
}

func getRequest(key string, o *state.ReadOptions) *components.GetRequest {
	return &components.GetRequest{Key: key, Metadata: o.Metadata, Consistency: level(o.Consistency)}
}

func level(c state.Consistency) components.StateOptions_StateConsistency {
	switch c {
	case state.Strong:
		return components.StateOptions_CONSISTENCY_STRONG
	case state.Eventual:
		return components.StateOptions_CONSISTENCY_EVENTUAL
	default:
		return components.StateOptions_CONSISTENCY_UNSPECIFIED
	}
}

// answered is the part of a response that describes one key. Two types implement it: the response to Get, and an item
// in the response to BulkGet.
type answered interface {
	GetData() []byte
	GetEtag() *components.Etag
	GetMetadata() map[string]string
	GetContentType() string
}

// item converts the answer for a key to an item. If the answer has neither a value nor an ETag, the key does not exist.
func (s *store) item(op, key string, a answered) (state.Item, error) {
	out := state.Item{Key: key, ETag: a.GetEtag().GetValue(), Proof: proof()}
	if len(out.ETag) > maxETag || strings.ContainsFunc(out.ETag, unicode.IsControl) {
		return state.Item{}, &fault.Error{Code: fault.Corrupt, Op: op, Key: key, Msg: s.link.who() +
			" returned an ETag that is longer than " + strconv.Itoa(maxETag) + " bytes or has control characters"}
	}
	out.Unversioned = out.ETag == "" && len(a.GetData()) > 0
	if !out.Found() {
		return out, nil
	}
	out.Value = a.GetData()
	if a.GetContentType() == state.OctetStream || !json.Valid(out.Value) {
		out.ContentType = state.OctetStream
	}
	// A process returns the expiry time only if it knows the time. Any other text is ignored.
	if at, err := time.Parse(time.RFC3339, a.GetMetadata()[state.MetadataExpireTime]); err == nil {
		out.Expires = at.UTC()
	}
	return out, nil
}

// BulkGet implements state.BulkGetter. A key that is missing from the response of the process counts as absent.
func (s *store) BulkGet(ctx context.Context, r state.BulkGetRequest) ([]state.Item, error) {
	const op = "pluggable.BulkGet"
	if err := s.gate.Enter(ctx, op); err != nil {
		return nil, err
	}
	found, err := s.bulk(ctx, op, &r)
	if err != nil {
		return nil, err
	}
	out := make([]state.Item, len(r.Keys))
	size := int64(0)
	for i, key := range r.Keys {
		item, ok := found[key]
		if !ok {
			item = state.Item{Key: key, Proof: proof()}
		}
		out[i] = item
		if size += int64(len(item.Value)); r.MaxBytes > 0 && size > r.MaxBytes {
			return nil, state.ValuesTooLarge(op, r.MaxBytes)
		}
	}
	return out, nil
}

// bulk reads each key in r once, and returns the items by key. A key that is missing from the response of the process
// is also missing from the result.
func (s *store) bulk(ctx context.Context, op string, r *state.BulkGetRequest) (map[string]state.Item, error) {
	in := &components.BulkGetRequest{
		Options: &components.BulkGetRequestOptions{Parallelism: int64(max(r.Parallelism, 0))}}
	found := make(map[string]state.Item, len(r.Keys)) // an empty item = no answer yet
	for _, key := range r.Keys {
		if _, twice := found[key]; !twice {
			found[key] = state.Item{}
			in.Items = append(in.Items, getRequest(key, &r.ReadOptions))
		}
	}
	if len(in.Items) == 0 {
		return nil, nil
	}
	if s.noBulk.Load() {
		return s.each(ctx, op, in.Items, r)
	}
	var answer *components.BulkGetResponse
	failed := s.link.call(ctx, reading, func(ctx context.Context, conn grpc.ClientConnInterface) (err error) {
		answer, err = components.NewStateStoreClient(conn).BulkGet(ctx, in)
		return err
	})
	switch {
	case failed.code() == codes.Unimplemented:
		s.noBulk.Store(true)
		return s.each(ctx, op, in.Items, r)
	case failed != nil:
		return nil, s.link.fault(op, "", failed, reading)
	}
	seen := make(map[string]bool, len(found))
	for _, i := range answer.GetItems() {
		key := i.GetKey()
		if _, asked := found[key]; !asked || seen[key] {
			return nil, &fault.Error{Code: fault.Corrupt, Op: op, Key: key, Msg: s.link.who() +
				" returned a key that was not requested, or a key twice"}
		}
		seen[key] = true
		item, err := s.item(op, key, i)
		if text := i.GetError(); text != "" && err == nil {
			err = &fault.Error{Code: fault.Internal, Op: op, Key: key,
				Msg: s.link.who() + " could not read the key: " + s.link.clean(text)}
		}
		if err != nil {
			item = state.Item{Key: key, Err: err, Proof: proof()}
		}
		found[key] = item
	}
	maps.DeleteFunc(found, func(key string, _ state.Item) bool { return !seen[key] })
	return found, nil
}

// each reads the keys in separate calls, with at most gatherers calls at a time. If a key cannot be read, Err of its
// item is set. If the values together exceed r.MaxBytes, the reads stop early and the result is state.ValuesTooLarge.
func (s *store) each(ctx context.Context, op string, items []*components.GetRequest, r *state.BulkGetRequest,
) (map[string]state.Item, error) {
	unfilled, stop := context.WithCancel(ctx)
	defer stop()
	var size atomic.Int64
	full := func() bool { return r.MaxBytes > 0 && size.Load() > r.MaxBytes }
	var mu sync.Mutex
	found := make(map[string]state.Item, len(items)) // guarded by mu
	var running sync.WaitGroup
	var position atomic.Int64
	for range min(gatherers, len(items)) {
		running.Go(func() {
			for i := position.Add(1) - 1; i < int64(len(items)) && !full(); i = position.Add(1) - 1 {
				key := items[i].GetKey()
				item, err := s.Get(unfilled, state.GetRequest{Key: key, ReadOptions: r.ReadOptions})
				if err != nil {
					item = state.Item{Key: key, Err: err, Proof: proof()}
				}
				mu.Lock()
				found[key] = item
				mu.Unlock()
				if size.Add(int64(len(item.Value))); full() {
					stop()
				}
			}
		})
	}
	running.Wait()
	switch err := ctx.Err(); {
	case err != nil:
		return nil, &fault.Error{Code: fault.Timeout, Op: op, Err: err, Msg: "the request was given up"}
	case full():
		return nil, state.ValuesTooLarge(op, r.MaxBytes)
	}
	return found, nil
}

// Set implements state.Store. If the process does not support transactions, Set is not atomic: after an error, some of
// the items may have been written.
func (s *store) Set(ctx context.Context, r state.SetRequest) (state.Written, error) {
	const op = "pluggable.Set"
	ops, err := s.operations(ctx, op, r.RequestID, outside.Upserts(r.Items))
	if err != nil {
		return state.Written{}, err
	}
	if len(ops) > 1 && slices.Contains(s.features, state.FeatureTransactional) {
		return s.transact(ctx, op, ops, r.Consistency, nil)
	}
	if len(ops) > 1 && !slices.ContainsFunc(ops, single) {
		return s.setAll(ctx, op, ops, r.Consistency)
	}
	return s.oneByOne(ctx, op, ops, r.Consistency)
}

// single reports whether an operation cannot be part of a BulkSet, so that it needs a call of its own. This is true for
// removals, and for conditional writes, because a BulkSet does not report which condition was not met.
func single(o state.Operation) bool { return o.Kind == state.Remove || outside.Conditional(&o) }

// partialError returns the error of an item, and adds that other items may have been saved.
func partialError(op string, err error) error {
	return outside.Partial(op, err,
		"other items of the request may have been saved, because the component has no transactions", "")
}

// setAll writes items without conditions in one call. If several items have the same key, it sends only the last one,
// because the process may write them in any order.
func (s *store) setAll(ctx context.Context, op string, ops []state.Operation, c state.Consistency) (state.Written,
	error) {
	in, last := &components.BulkSetRequest{}, outside.Last(ops)
	for i := range ops {
		if last[ops[i].Key] == i {
			in.Items = append(in.Items, s.setRequest(&ops[i], c))
		}
	}
	failed := s.link.call(ctx, writing, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		_, err := components.NewStateStoreClient(conn).BulkSet(ctx, in)
		return err
	})
	switch {
	case failed == nil:
		return state.Written{Proof: proof()}, nil
	case failed.code() == codes.Unimplemented:
		return s.oneByOne(ctx, op, ops, c)
	}
	err := s.link.fault(op, "", failed, writing)
	if failed.sent {
		err = partialError(op, err)
	}
	return state.Written{}, err
}

// oneByOne writes items one by one. After an error the items written so far remain.
func (s *store) oneByOne(ctx context.Context, op string, ops []state.Operation, c state.Consistency) (state.Written,
	error) {
	for i := range ops {
		err := s.one(ctx, op, &ops[i], c)
		switch {
		case err != nil && i > 0:
			return state.Written{}, partialError(op, err)
		case err != nil:
			return state.Written{}, err
		}
	}
	return state.Written{Proof: proof()}, nil
}

// Delete implements state.Store.
func (s *store) Delete(ctx context.Context, r state.DeleteRequest) (state.Written, error) {
	const op = "pluggable.Delete"
	ops, err := s.operations(ctx, op, r.RequestID, []state.Operation{outside.Removal(r)})
	if err == nil {
		err = s.one(ctx, op, &ops[0], r.Consistency)
	}
	if err != nil {
		return state.Written{}, err
	}
	return state.Written{Proof: proof()}, nil
}

// Transact implements state.Transactor.
func (s transactional) Transact(ctx context.Context, r state.TransactRequest) (state.Written, error) {
	const op = "pluggable.Transact"
	ops, err := s.operations(ctx, op, r.RequestID, r.Operations)
	if err != nil || len(ops) == 0 {
		return state.Written{Proof: proof()}, err
	}
	return s.transact(ctx, op, ops, r.Consistency, r.Metadata)
}

// operations checks the operations of a request, and returns the operations to send. A write whose expiry time has
// passed becomes a removal, unless the write must create its key, because a removal cannot have this condition.
func (s *store) operations(ctx context.Context, op, requestID string, ops []state.Operation) ([]state.Operation,
	error) {
	if err := s.gate.Enter(ctx, op); err != nil {
		return nil, err
	}
	if err := outside.Check(op, "a pluggable component", requestID, ops); err != nil {
		return nil, err
	}
	out := slices.Clone(ops)
	for i := range out {
		o := &out[i]
		if outside.Creates(o) && !slices.Contains(s.features, state.FeatureETag) {
			return nil, &fault.Error{Code: fault.Invalid, Op: op, Key: o.Key,
				Msg:  s.link.who() + " does not have the feature ETAG, so that it may overwrite a key that exists",
				Hint: "omit first-write, or let the component announce ETAG"}
		}
		if o.Kind == state.Upsert && !outside.Creates(o) && o.TTL.At != nil && !o.TTL.At.After(s.now()) {
			*o = state.Operation{Kind: state.Remove, Write: state.Write{Key: o.Key, ETag: o.ETag, Metadata: o.Metadata}}
		}
	}
	return out, nil
}

// one carries out one operation. It returns fault.Conflict if the condition of the operation is not met.
func (s *store) one(ctx context.Context, op string, o *state.Operation, c state.Consistency) error {
	failed := s.link.call(ctx, writing, func(ctx context.Context, conn grpc.ClientConnInterface) (err error) {
		client := components.NewStateStoreClient(conn)
		if o.Kind == state.Remove {
			_, err = client.Delete(ctx, s.deleteRequest(o, c))
		} else {
			_, err = client.Set(ctx, s.setRequest(o, c))
		}
		return err
	})
	code := failed.code()
	switch {
	case failed == nil:
		return nil
	case o.Kind == state.Remove && code == codes.NotFound && o.ETag == "":
		return nil
	case outside.Conditional(o) && isETagError(failed), code == codes.NotFound && o.ETag != "",
		code == codes.AlreadyExists && outside.Creates(o):
		return outside.Conflict(op, o)
	}
	return s.tooLarge(s.link.fault(op, o.Key, failed, writing), len(o.Value))
}

// tooLarge converts fault.Overloaded to fault.TooLarge if size, the size of the request, exceeds the default limit of
// gRPC servers. This is necessary because gRPC servers return the same status for overload and for a request that is
// too large.
func (s *store) tooLarge(err error, size int) error {
	const usual = 4<<20 - 1<<10
	if size < usual || !fault.Is(err, fault.Overloaded) {
		return err
	}
	return &fault.Error{Code: fault.TooLarge, Op: "pluggable.Set", Key: fault.KeyOf(err), Err: err,
		Msg: "the value is larger than the component accepts", Hint: "raise the limit of its gRPC server"}
}

// transact carries out operations in one transaction.
func (s *store) transact(ctx context.Context, op string, ops []state.Operation, c state.Consistency,
	meta map[string]string) (state.Written, error) {
	if most := s.most.Load(); most > 0 && int64(len(ops)) > most {
		return state.Written{}, &fault.Error{Code: fault.TooLarge, Op: op,
			Msg:  s.link.who() + " takes at most " + strconv.FormatInt(most, 10) + " operations in a transaction",
			Hint: "split the request"}
	}
	in, size := &components.TransactionalStateRequest{Metadata: meta}, 0
	for i := range ops {
		size += len(ops[i].Value)
		one := &components.TransactionalStateOperation{}
		if ops[i].Kind == state.Remove {
			one.Request = &components.TransactionalStateOperation_Delete{Delete: s.deleteRequest(&ops[i], c)}
		} else {
			one.Request = &components.TransactionalStateOperation_Set{Set: s.setRequest(&ops[i], c)}
		}
		in.Operations = append(in.Operations, one)
	}
	failed := s.link.call(ctx, writing, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		_, err := components.NewTransactionalStateStoreClient(conn).Transact(ctx, in)
		return err
	})
	switch {
	case failed == nil:
		return state.Written{Proof: proof()}, nil
	case isETagError(failed):
		if err := s.conflict(ctx, op, ops); err != nil {
			return state.Written{}, err
		}
	}
	return state.Written{}, s.tooLarge(s.link.fault(op, "", failed, writing), size)
}

// conflict returns the error of a transaction that failed because a condition was not met. A pluggable component does
// not report which condition failed, so conflict reads the keys to find one. It returns nil if the transaction has no
// conditions.
func (s *store) conflict(ctx context.Context, op string, ops []state.Operation) error {
	var conditional []state.Operation
	for _, o := range ops {
		if outside.Conditional(&o) {
			conditional = append(conditional, o)
		}
	}
	if len(conditional) == 0 {
		return nil
	}
	if len(conditional) > 1 {
		r := state.BulkGetRequest{ReadOptions: state.ReadOptions{Consistency: state.Strong}}
		for _, o := range conditional {
			r.Keys = append(r.Keys, o.Key)
		}
		current := map[string]string{}
		if items, err := s.BulkGet(ctx, r); err == nil {
			for _, i := range items {
				if i.Err == nil && i.Found() {
					current[i.Key] = i.ETag
				}
			}
			if err := outside.Permit(op, conditional, current); err != nil {
				return err
			}
		}
	}
	return outside.Conflict(op, &conditional[0])
}

func (s *store) setRequest(o *state.Operation, c state.Consistency) *components.SetRequest {
	out := &components.SetRequest{Key: o.Key, Value: o.Value, Etag: etag(o.ETag), Metadata: s.metadata(o),
		Options: options(o, c)}
	for name, kind := range out.Metadata {
		if strings.EqualFold(name, state.MetadataContentType) {
			out.ContentType = kind
		}
	}
	if o.ContentType == state.OctetStream { // even if encryption has changed the value
		maps.DeleteFunc(out.Metadata, func(name, _ string) bool {
			return strings.EqualFold(name, state.MetadataContentType)
		})
		out.ContentType, out.Metadata[state.MetadataContentType] = state.OctetStream, state.OctetStream
	}
	return out
}

func (s *store) deleteRequest(o *state.Operation, c state.Consistency) *components.DeleteRequest {
	return &components.DeleteRequest{Key: o.Key, Etag: etag(o.ETag), Metadata: o.Metadata, Options: options(o, c)}
}

func etag(text string) *components.Etag {
	if text == "" {
		return nil
	}
	return &components.Etag{Value: text}
}

// options returns the options of a write. It sets first-write concurrency for a conditional write, because otherwise
// many components ignore the ETag. It sets no concurrency for any other write, because with first-write concurrency
// some components refuse to remove a key without an ETag.
func options(o *state.Operation, c state.Consistency) *components.StateOptions {
	out := &components.StateOptions{Consistency: level(c)}
	if outside.Conditional(o) {
		out.Concurrency = components.StateOptions_CONCURRENCY_FIRST_WRITE
	}
	return out
}

// metadata returns the metadata to send with a write. The TTL is in whole seconds, rounded up. A TTL of -1 means that
// the value never expires.
func (s *store) metadata(o *state.Operation) map[string]string {
	out := make(map[string]string, len(o.Metadata)+1)
	for name, value := range o.Metadata {
		if !strings.EqualFold(name, state.MetadataTTL) && !strings.EqualFold(name, state.MetadataExpireTime) {
			out[name] = value
		}
	}
	switch t := o.TTL; {
	case !t.Set:
	case t.At != nil:
		left := math.Ceil(t.At.Sub(s.now()).Seconds())
		out[state.MetadataTTL] = strconv.FormatInt(int64(min(max(left, 1), math.MaxInt32)), 10)
	case t.Seconds > 0:
		out[state.MetadataTTL] = strconv.FormatInt(t.Seconds, 10)
	default:
		out[state.MetadataTTL] = "-1"
	}
	return out
}
