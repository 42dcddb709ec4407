package cosmosdb

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/fault"
)

// Set implements state.Store. If all items are in one partition, Set writes them in one atomic batch. Otherwise, it
// writes the items one by one. If one of them fails, the items before it stay written.
func (s *Store) Set(ctx context.Context, r state.SetRequest) (state.Written, error) {
	const op = "cosmosdb.Set"
	ops := outside.Upserts(r.Items)
	if len(ops) > 1 && samePartition(ops) {
		return s.apply(ctx, op, r.RequestID, r.Consistency, ops)
	}
	out := state.Written{Proof: s.proof(r.Consistency)}
	for i := range ops {
		written, err := s.apply(ctx, op, r.RequestID, r.Consistency, ops[i:i+1])
		switch {
		case err != nil && i > 0:
			return state.Written{}, outside.Partial(op, err,
				"the items before it were saved, because items of several partitions cannot be saved together",
				"give all items the same metadata "+MetadataPartitionKey)
		case err != nil:
			return state.Written{}, err
		}
		out.ETags = append(out.ETags, written.ETags...)
	}
	return out, nil
}

// Delete implements state.Store.
func (s *Store) Delete(ctx context.Context, r state.DeleteRequest) (state.Written, error) {
	return s.apply(ctx, "cosmosdb.Delete", r.RequestID, r.Consistency, []state.Operation{outside.Removal(r)})
}

// Transact implements state.Transactor. All keys must be in one partition.
func (s *Store) Transact(ctx context.Context, r state.TransactRequest) (state.Written, error) {
	const op = "cosmosdb.Transact"
	ops := r.Operations
	if len(r.Metadata) > 0 {
		ops = make([]state.Operation, len(r.Operations))
		for i, o := range r.Operations {
			o.Metadata = map[string]string{MetadataPartitionKey: partition(o.Key, r.Metadata)}
			ops[i] = o
		}
	}
	if !samePartition(ops) {
		return state.Written{}, &fault.Error{Code: fault.Invalid, Op: op,
			Msg:  "the keys of the transaction are in several partitions of Cosmos DB",
			Hint: "give the metadata " + MetadataPartitionKey + " to it, and when you read and delete these keys"}
	}
	return s.apply(ctx, op, r.RequestID, r.Consistency, ops)
}

func samePartition(ops []state.Operation) bool {
	for i := range ops {
		if partition(ops[i].Key, ops[i].Metadata) != partition(ops[0].Key, ops[0].Metadata) {
			return false
		}
	}
	return true
}

// apply carries out operations on one partition atomically.
func (s *Store) apply(ctx context.Context, op, requestID string, level state.Consistency, ops []state.Operation,
) (state.Written, error) {
	out := state.Written{Proof: s.proof(level)}
	if err := s.gate.Enter(ctx, op); err != nil || len(ops) == 0 {
		return out, err
	}
	if err := s.check(op, requestID, ops); err != nil {
		return state.Written{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c := &change{Store: s, op: op, partition: partition(ops[0].Key, ops[0].Metadata), etag: map[string]string{}}
	if err := c.plan(ops); err != nil {
		return state.Written{}, err
	}
	if err := s.again(ctx, func() error { return c.run(ctx) }); err != nil {
		return state.Written{}, s.failed(ctx, op, ops[0].Key, err, writing)
	}
	out.ETags = outside.ETags(ops, outside.Last(ops), c.etag)
	return out, nil
}

func (s *Store) check(op, requestID string, ops []state.Operation) error {
	for i := range ops {
		o := &ops[i]
		if why := unstorable(o.Key); why != "" {
			return &fault.Error{Code: fault.Invalid, Op: op, Key: o.Key, Hint: "use another key",
				Msg: "key " + strconv.Quote(o.Key) + " " + why + ", which Cosmos DB cannot store"}
		}
		if o.TTL.Set && (o.TTL.Seconds > 0 || o.TTL.At != nil) && !s.expires {
			return &fault.Error{Code: fault.Invalid, Op: op, Key: o.Key, Hint: ttlHint,
				Msg: "the container of Cosmos DB has no time to live, so that values cannot expire"}
		}
	}
	return outside.Check(op, "Cosmos DB", requestID, ops)
}

// step is one request about one item, alone or in a batch.
type step struct {
	verb string // create, upsert, replace, delete
	op   *state.Operation
	etag string // ETag that the item must have; empty = no condition
	item []byte
}

// change is a list of steps on one partition, which run applies atomically.
type change struct {
	*Store
	op        string
	partition string
	steps     []step
	etag      map[string]string
}

// plan converts the operations to the steps of one batch, with one or two steps for each key. It returns fault.TooLarge
// for more than maxSteps steps.
func (c *change) plan(ops []state.Operation) error {
	last := outside.Last(ops)
	if len(last) > maxSteps {
		return c.tooLarge()
	}
	for i := range ops {
		if last[ops[i].Key] != i {
			continue
		}
		if err := c.planKey(ops, &ops[i]); err != nil {
			return err
		}
	}
	if len(c.steps) > maxSteps {
		return c.tooLarge()
	}
	return nil
}

// maxSteps is the largest number of steps in one batch of Cosmos DB.
const maxSteps = 100

func (c *change) tooLarge() error {
	return &fault.Error{Code: fault.TooLarge, Op: c.op,
		Msg: "a transaction of Cosmos DB can have 100 operations; " +
			"a delete without an ETag counts twice", Hint: "split the transaction"}
}

// planKey plans the steps for one key. All operations on the key become one change: the last operation determines the
// new value, and the conditions of all operations apply.
//
// An unconditional deletion must succeed even if the item is missing. In Cosmos DB, however, the deletion of a missing
// item fails the whole batch. Therefore, in a request with several operations, planKey first writes the item and then
// deletes it.
func (c *change) planKey(ops []state.Operation, final *state.Operation) error {
	creates, etag := false, ""
	for i := range ops {
		o := &ops[i]
		if o.Key != final.Key {
			continue
		}
		creates = creates || outside.Creates(o)
		if o.ETag == "" {
			continue
		}
		if !isETag(o.ETag) || etag != "" && etag != o.ETag {
			return outside.Conflict(c.op, o)
		}
		etag = o.ETag
	}
	if creates && etag != "" { // the item cannot be absent and have an ETag
		return outside.Conflict(c.op, final)
	}
	ttl, expired := c.seconds(final.TTL)
	removes := final.Kind == state.Remove || expired
	item, err := encode(&final.Write, c.partition, ttl)
	if err != nil {
		return &fault.Error{Code: fault.Internal, Op: c.op, Key: final.Key, Err: err, Msg: "encoding the item"}
	}
	if expired {
		c.etag[final.Key] = outside.NewETag(false) // the value never becomes visible
	}
	switch {
	case etag != "" && removes:
		c.steps = append(c.steps, step{verb: "delete", op: final, etag: etag})
		return nil
	case etag != "":
		c.steps = append(c.steps, step{verb: "replace", op: final, etag: etag, item: item})
	case creates:
		c.steps = append(c.steps, step{verb: "create", op: final, item: item})
	case !removes || len(ops) > 1:
		c.steps = append(c.steps, step{verb: "upsert", op: final, item: item})
	}
	if removes {
		c.steps = append(c.steps, step{verb: "delete", op: final})
	}
	return nil
}

// isETag reports whether a string has the form of a Cosmos DB ETag. Other strings must not be sent as a condition:
// for example, * matches every ETag.
func isETag(text string) bool {
	return len(text) > 2 && text[0] == '"' && text[len(text)-1] == '"' && !strings.ContainsFunc(text[1:len(text)-1],
		func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '"' || r == '\\' })
}

// seconds returns the time to live in seconds; 0 means that the value never expires. expired is true if the expiry
// time has already passed.
func (c *change) seconds(ttl state.TTL) (seconds int64, expired bool) {
	switch {
	case !ttl.Set || ttl.At == nil && ttl.Seconds <= 0:
		return 0, false
	case ttl.At == nil:
		return ttl.Seconds, false
	}
	left := ttl.At.Sub(c.now())
	return min(int64(math.Ceil(left.Seconds())), math.MaxInt32), left <= 0
}

// run sends the steps, and returns the error of a step that failed.
func (c *change) run(ctx context.Context) error {
	if len(c.steps) == 1 {
		etag, err := c.single(ctx, &c.steps[0])
		return c.judge(&c.steps[0], status(err), etag, err)
	}
	batch := c.container.NewTransactionalBatch(azcosmos.NewPartitionKeyString(c.partition))
	for i := range c.steps {
		c.steps[i].add(&batch)
	}
	answer, err := c.container.ExecuteTransactionalBatch(ctx, batch, nil)
	if err != nil {
		return err
	}
	for i, result := range answer.OperationResults {
		code := int(result.StatusCode)
		if i >= len(c.steps) || code == http.StatusFailedDependency {
			continue
		}
		var failed error
		if code >= http.StatusBadRequest {
			failed = &azcore.ResponseError{StatusCode: code}
		}
		if err := c.judge(&c.steps[i], code, string(result.ETag), failed); err != nil {
			return err
		}
	}
	if !answer.Success {
		return &fault.Error{Code: fault.Internal, Op: c.op, Msg: "Cosmos DB refused a transaction without a reason"}
	}
	return nil
}

// judge evaluates the response to one step. If the step succeeded, it records the new ETag and returns nil. It also
// returns nil if an unconditional deletion finds no item. It returns fault.Conflict if the condition of the step was
// not met. If a concurrent write interfered, it returns an error with status 449, so that the batch is repeated.
func (c *change) judge(st *step, code int, etag string, err error) error {
	switch {
	case err == nil:
		if c.etag[st.op.Key] == "" {
			c.etag[st.op.Key] = etag
		}
		return nil
	case lostContainer(err):
		return err
	case st.verb == "delete" && st.etag == "" && code == http.StatusNotFound:
		return nil
	case code == http.StatusPreconditionFailed, st.verb == "create" && code == http.StatusConflict,
		st.etag != "" && code == http.StatusNotFound:
		return outside.Conflict(c.op, st.op)
	case code == http.StatusConflict: // a concurrent write interfered
		return &azcore.ResponseError{StatusCode: statusRetryWith}
	}
	return err
}

// single sends one step without a batch. It returns the new ETag.
func (c *change) single(ctx context.Context, st *step) (string, error) {
	options := &azcosmos.ItemOptions{}
	if st.etag != "" {
		options.IfMatchEtag = (*azcore.ETag)(&st.etag)
	}
	var answer azcosmos.ItemResponse
	var err error
	where := azcosmos.NewPartitionKeyString(c.partition)
	switch st.verb {
	case "create":
		answer, err = c.container.CreateItem(ctx, where, st.item, options)
	case "upsert":
		answer, err = c.container.UpsertItem(ctx, where, st.item, options)
	case "replace":
		answer, err = c.container.ReplaceItem(ctx, where, st.op.Key, st.item, options)
	default:
		answer, err = c.container.DeleteItem(ctx, where, st.op.Key, options)
	}
	return string(answer.ETag), err
}

// add adds a step to a batch. It escapes the id, because the client inserts the id into JSON unchanged.
func (st *step) add(batch *azcosmos.TransactionalBatch) {
	quoted, _ := json.Marshal(st.op.Key) // a text always has a form in JSON
	id := string(quoted[1 : len(quoted)-1])
	options := &azcosmos.TransactionalBatchItemOptions{}
	if st.etag != "" {
		options.IfMatchETag = (*azcore.ETag)(&st.etag)
	}
	switch st.verb {
	case "create":
		batch.CreateItem(st.item, options)
	case "upsert":
		batch.UpsertItem(st.item, options)
	case "replace":
		batch.ReplaceItem(id, st.item, options)
	default:
		batch.DeleteItem(id, options)
	}
}
