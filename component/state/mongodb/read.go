package mongodb

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/fault"
)

// document is a document of the collection.
type document struct {
	Key   string        `bson:"_id"`
	Value bson.RawValue `bson:"value"`
	ETag  bson.RawValue `bson:"_etag"`
	TTL   bson.RawValue `bson:"_ttl"`
}

// alive returns the filter for documents that have not expired according to MongoDB's clock. MongoDB itself removes
// expired documents only about once a minute.
func alive() bson.E {
	return bson.E{Key: "$or", Value: bson.A{
		bson.D{{Key: fieldTTL, Value: nil}},
		bson.D{{Key: "$expr", Value: bson.D{{Key: "$gt", Value: bson.A{"$" + fieldTTL, "$$NOW"}}}}},
	}}
}

// Get implements state.Store.
func (s *Store) Get(ctx context.Context, r state.GetRequest) (state.Item, error) {
	proof := s.proof(r.Consistency)
	out := state.Item{Key: r.Key, Proof: proof}
	filter := bson.D{{Key: fieldKey, Value: r.Key}, alive()}
	err := s.find(ctx, "mongodb.Get", r.Key, r.Consistency, filter, options.Find().SetLimit(1),
		func(d document) error {
			out = d.item()
			out.Proof = proof
			return out.Err
		})
	if err != nil {
		return state.Item{}, err
	}
	return out, nil
}

// BulkGet implements state.BulkGetter. It reads all keys in one round trip, or in several if the values exceed the
// size limit for MongoDB's responses.
func (s *Store) BulkGet(ctx context.Context, r state.BulkGetRequest) ([]state.Item, error) {
	const op = "mongodb.BulkGet"
	times := map[string]int64{}
	for _, key := range r.Keys {
		times[key]++
	}
	keys := make(bson.A, 0, len(times))
	for key := range times {
		keys = append(keys, key)
	}
	found := map[string]state.Item{}
	size := int64(0)
	filter := bson.D{{Key: fieldKey, Value: bson.D{{Key: "$in", Value: keys}}}, alive()}
	err := s.find(ctx, op, "", r.Consistency, filter, nil, func(d document) error {
		item := d.item()
		if times[item.Key] == 0 {
			return stranger(op)
		}
		if size += times[item.Key] * int64(len(item.Value)); r.MaxBytes > 0 && size > r.MaxBytes {
			return state.ValuesTooLarge(op, r.MaxBytes)
		}
		found[item.Key] = item
		return nil
	})
	if err != nil {
		return nil, err
	}
	out := make([]state.Item, len(r.Keys))
	for i, key := range r.Keys {
		item, ok := found[key]
		if !ok {
			item = state.Item{Key: key, Proof: many()}
		}
		out[i] = item
	}
	return out, nil
}

// stranger returns the error of an answer with a document that was not requested.
func stranger(op string) error {
	return &fault.Error{Code: fault.Corrupt, Op: op, Msg: "MongoDB answered with a document that was not requested",
		Hint: "check the address of the server"}
}

// maxPage bounds a page of a listing.
const maxPage = 1000

// List implements state.Lister. Pages are in the order of _id, which is the byte order of keys.
func (s *Store) List(ctx context.Context, r state.ListRequest) (state.Page, error) {
	limit := r.Limit
	if limit <= 0 || limit > maxPage {
		limit = maxPage
	}
	from, after, end := outside.Bounds(r)
	bounds := bson.D{{Key: "$gte", Value: from}, {Key: "$gt", Value: after}}
	if end != "" {
		bounds = append(bounds, bson.E{Key: "$lt", Value: end})
	}
	page := state.Page{Proof: many()}
	opts := options.Find().SetSort(bson.D{{Key: fieldKey, Value: 1}}).SetLimit(int64(limit) + 1).
		SetProjection(bson.D{{Key: fieldETag, Value: 1}, {Key: fieldTTL, Value: 1}}) // and the key, but no value
	err := s.find(ctx, "mongodb.List", "", r.Consistency, bson.D{{Key: fieldKey, Value: bounds}, alive()}, opts,
		func(d document) error {
			if len(page.Items) > limit {
				return stranger("mongodb.List")
			}
			page.Items = append(page.Items, d.described())
			return nil
		})
	if err != nil {
		return state.Page{}, err
	}
	if page.More = len(page.Items) > limit; page.More {
		page.Items = page.Items[:limit]
	}
	return page, nil
}

// find calls take(d) for every document d that matches the filter. If take returns an error, find stops and returns it.
func (s *Store) find(ctx context.Context, op, key string, level state.Consistency, filter bson.D,
	opts *options.FindOptionsBuilder, take func(document) error,
) error {
	if err := s.gate.Enter(ctx, op); err != nil {
		return err
	}
	ctx, cancel := s.limited(ctx)
	defer cancel()
	if opts == nil {
		opts = options.Find()
	}
	cursor, err := s.at(level).Find(ctx, filter, opts)
	if err != nil {
		return s.failed(op, key, err, reading)
	}
	defer cursor.Close(context.WithoutCancel(ctx))
	for cursor.Next(ctx) {
		var d document
		if err := cursor.Decode(&d); err != nil {
			return &fault.Error{Code: fault.Corrupt, Op: op, Key: key, Err: err,
				Msg: "a document of the collection is not one of a state store"}
		}
		if err := take(d); err != nil {
			return err
		}
	}
	if err := cursor.Err(); err != nil {
		return s.failed(op, key, err, reading)
	}
	return nil
}

// described returns the item in a document without its value. If the ETag or the expiry time cannot be decoded,
// Item.Err is set.
func (d *document) described() state.Item {
	out := state.Item{Key: d.Key, Proof: many()}
	var expires *time.Time
	for _, one := range []struct {
		raw  bson.RawValue
		into any
	}{{d.ETag, &out.ETag}, {d.TTL, &expires}} {
		if one.raw.IsZero() { // the document does not have the field
			continue
		}
		if err := one.raw.Unmarshal(one.into); err != nil {
			return d.unreadable("the document is not one of a state store", err)
		}
	}
	if expires != nil {
		out.Expires = expires.UTC()
	}
	return out
}

// item returns the item in a document. If the document cannot be decoded, Item.Err is set.
func (d *document) item() state.Item {
	out := d.described()
	if out.Err != nil {
		return out
	}
	var err error
	if out.Value, err = decode(d.Value); err != nil {
		return d.unreadable("the value has a BSON type that has no form in JSON", err)
	}
	if d.Value.Type == bson.TypeString {
		out.ContentType = outside.ContentType(out.ETag, out.Value)
	}
	return out
}

// unreadable returns an item with an error. It has no ETag and no value.
func (d *document) unreadable(msg string, err error) state.Item {
	return state.Item{Key: d.Key, Proof: many(),
		Err: &fault.Error{Code: fault.Corrupt, Op: "mongodb.Get", Key: d.Key, Err: err, Msg: msg}}
}
