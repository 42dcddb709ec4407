package mongodb

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/fault"
)

// maxValue is the maximum size of a value in bytes. MongoDB limits a whole document, with its other fields, to 16
// MiB.
const maxValue = 16<<20 - 32<<10

// Set implements state.Store. It writes several items in one transaction, except on a standalone server, which has no
// transactions. There it writes the items one by one. If one of them fails, the items before it stay written.
func (s *Store) Set(ctx context.Context, r state.SetRequest) (state.Written, error) {
	const op = "mongodb.Set"
	if !s.standalone {
		return s.apply(ctx, op, r.RequestID, r.Consistency, outside.Upserts(r.Items))
	}
	out := state.Written{Proof: s.proof(r.Consistency)}
	for i, o := range outside.Upserts(r.Items) {
		written, err := s.apply(ctx, op, r.RequestID, r.Consistency, []state.Operation{o})
		switch {
		case err != nil && i > 0:
			return state.Written{}, partialError(op, err)
		case err != nil:
			return state.Written{}, err
		}
		out.ETags = append(out.ETags, written.ETags...)
	}
	return out, nil
}

// partialError returns the error of an item, and adds that the items before it were saved.
func partialError(op string, err error) error {
	return outside.Partial(op, err, "the items before it were saved, because a standalone server has no transactions",
		replicaSetHint)
}

// Delete implements state.Store.
func (s *Store) Delete(ctx context.Context, r state.DeleteRequest) (state.Written, error) {
	return s.apply(ctx, "mongodb.Delete", r.RequestID, r.Consistency, []state.Operation{outside.Removal(r)})
}

// Transact implements state.Transactor.
func (s *Store) Transact(ctx context.Context, r state.TransactRequest) (state.Written, error) {
	const op = "mongodb.Transact"
	if err := s.gate.Enter(ctx, op); err != nil {
		return state.Written{}, err
	}
	if s.standalone {
		return state.Written{}, noTransactions(op)
	}
	return s.apply(ctx, op, r.RequestID, r.Consistency, r.Operations)
}

// change is a list of operations that are applied atomically.
type change struct {
	*Store
	op    string
	ops   []state.Operation
	level state.Consistency
	last  map[string]int // index of the last operation on each key
	etag  map[string]string
}

// apply executes all operations atomically. It retries while concurrent writes of the same keys cause conflicts.
func (s *Store) apply(ctx context.Context, op, requestID string, level state.Consistency, ops []state.Operation,
) (state.Written, error) {
	c := &change{Store: s, op: op, ops: ops, level: level, last: outside.Last(ops)}
	proof := s.proof(level)
	if len(ops) > 1 {
		proof = s.proof(state.Strong) // a transaction always waits for a majority
	}
	if err := c.check(ctx, requestID); err != nil || len(ops) == 0 {
		return state.Written{Proof: proof}, err
	}
	ctx, cancel := s.limited(ctx)
	defer cancel()
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 2*time.Millisecond, 100*time.Millisecond
	var inTheWay error
	for {
		c.etag = map[string]string{}
		err := c.run(ctx)
		switch {
		case err == nil:
			return state.Written{ETags: outside.ETags(ops, c.last, c.etag), Proof: proof}, nil
		case !transient(err):
			err = s.failed(op, ops[0].Key, err, writing)
			if fault.Is(err, fault.Timeout) && inTheWay != nil {
				err = inTheWay // the conflict is the cause of the timeout
			}
			return state.Written{}, err
		}
		inTheWay = s.failed(op, ops[0].Key, err, unsent)
		select {
		case <-ctx.Done():
			return state.Written{}, inTheWay
		case <-time.After(pause.NextBackOff()):
		}
	}
}

func (c *change) check(ctx context.Context, requestID string) error {
	if err := c.gate.Enter(ctx, c.op); err != nil {
		return err
	}
	for _, o := range c.ops {
		if len(o.Value) > maxValue && o.Kind == state.Upsert {
			return &fault.Error{Code: fault.TooLarge, Op: c.op, Key: o.Key,
				Msg: "the value is larger than a document of MongoDB, which can have 16 MiB", Hint: "split the value"}
		}
	}
	return outside.Check(c.op, "MongoDB", requestID, c.ops)
}

// run carries out the operations once.
func (c *change) run(ctx context.Context) error {
	if len(c.ops) > 1 {
		return c.transaction(ctx)
	}
	o, coll := &c.ops[0], c.at(c.level)
	if o.Kind == state.Remove {
		return c.remove(ctx, coll, o)
	}
	return c.write(ctx, coll, o)
}

// remove deletes one document.
func (c *change) remove(ctx context.Context, coll *mongo.Collection, o *state.Operation) error {
	filter := bson.D{{Key: fieldKey, Value: o.Key}}
	if o.ETag != "" {
		filter = append(filter, bson.E{Key: fieldETag, Value: o.ETag}, alive())
	}
	result, err := coll.DeleteOne(ctx, filter)
	if err == nil && o.ETag != "" && result.DeletedCount == 0 {
		return outside.Conflict(c.op, o)
	}
	return err
}

// write writes one document.
func (c *change) write(ctx context.Context, coll *mongo.Collection, o *state.Operation) error {
	filter, upsert := bson.D{{Key: fieldKey, Value: o.Key}}, o.ETag == ""
	if !upsert {
		filter = append(filter, bson.E{Key: fieldETag, Value: o.ETag}, alive())
	}
	var result *mongo.UpdateResult
	var err error
	switch {
	case outside.Creates(o):
		result, err = coll.UpdateOne(ctx, filter, unlessAlive(c.update(o)), options.UpdateOne().SetUpsert(upsert))
	case relative(o.TTL):
		result, err = coll.UpdateOne(ctx, filter, c.update(o), options.UpdateOne().SetUpsert(upsert))
	default:
		result, err = coll.ReplaceOne(ctx, filter, c.replacement(o), options.Replace().SetUpsert(upsert))
	}
	if err == nil && result.ModifiedCount+result.UpsertedCount == 0 {
		return outside.Conflict(c.op, o)
	}
	return err
}

// replacement returns the new document for an upsert, and stores the document's ETag in c.etag. It does not support a
// relative TTL, for which the caller must use update.
func (c *change) replacement(o *state.Operation) bson.D {
	c.etag[o.Key] = outside.NewETag(o.ContentType != "")
	return bson.D{{Key: fieldKey, Value: o.Key}, {Key: fieldValue, Value: string(o.Value)},
		{Key: fieldETag, Value: c.etag[o.Key]}, {Key: fieldTTL, Value: expiry(o.TTL)}}
}

// update returns the pipeline that gives a document a new value, and stores the new ETag in c.etag.
func (c *change) update(o *state.Operation) mongo.Pipeline {
	c.etag[o.Key] = outside.NewETag(o.ContentType != "")
	return mongo.Pipeline{{{Key: "$replaceWith", Value: bson.D{
		{Key: fieldKey, Value: literal(o.Key)},
		{Key: fieldValue, Value: literal(string(o.Value))},
		{Key: fieldETag, Value: literal(c.etag[o.Key])},
		{Key: fieldTTL, Value: expiry(o.TTL)},
	}}}}
}

// unlessAlive returns a pipeline that applies update only if the document does not exist or has expired. Otherwise, the
// pipeline leaves the document unchanged, and MongoDB does not count it as modified.
func unlessAlive(update mongo.Pipeline) mongo.Pipeline {
	etag, ttl := "$"+fieldETag, "$"+fieldTTL
	exists := bson.D{{Key: "$gt", Value: bson.A{etag, nil}}}
	unexpired := bson.D{{Key: "$or", Value: bson.A{
		bson.D{{Key: "$lte", Value: bson.A{ttl, nil}}}, bson.D{{Key: "$gt", Value: bson.A{ttl, "$$NOW"}}},
	}}}
	return mongo.Pipeline{{{Key: "$replaceWith", Value: bson.D{{Key: "$cond", Value: bson.A{
		bson.D{{Key: "$and", Value: bson.A{exists, unexpired}}}, "$$ROOT", update[0][0].Value,
	}}}}}}
}

// literal protects a value from being read as an expression.
func literal(v any) bson.D { return bson.D{{Key: "$literal", Value: v}} }

// relative reports whether a TTL is a number of seconds from now. MongoDB must calculate the expiry time for such a
// TTL, because "now" is the time of MongoDB's clock.
func relative(ttl state.TTL) bool { return ttl.Set && ttl.At == nil && ttl.Seconds > 0 }

// expiry returns the value of the field _ttl for a TTL. It is nil if the value never expires. For a relative TTL, it is
// an expression that MongoDB evaluates. Otherwise, it is a time.
func expiry(ttl state.TTL) any {
	switch {
	case relative(ttl):
		return bson.D{{Key: "$add", Value: bson.A{"$$NOW", ttl.Seconds * 1000}}}
	case ttl.Set && ttl.At != nil:
		return *ttl.At
	}
	return nil
}

// models returns one write for each key: the last operation on that key. The writes are sorted by key. Therefore two
// concurrent transactions conflict at the first key that they share, before they write the other shared keys.
func (c *change) models() []mongo.WriteModel {
	var out []mongo.WriteModel
	for _, key := range slices.Sorted(maps.Keys(c.last)) {
		o := &c.ops[c.last[key]]
		filter := bson.D{{Key: fieldKey, Value: key}}
		if o.Kind == state.Remove {
			out = append(out, mongo.NewDeleteOneModel().SetFilter(filter))
			continue
		}
		out = append(out, mongo.NewUpdateOneModel().SetFilter(filter).SetUpdate(c.update(o)).SetUpsert(true))
	}
	return out
}
