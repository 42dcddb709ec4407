// Package mongodb implements the component type state.mongodb: a state store in a MongoDB collection. The package owns
// the documents and the conversion of MongoDB's errors to fault codes. Only the client library starts goroutines, and
// Close ends them.
//
// The documents have the format of Dapr's component, with these fields:
//
//	_id     the stored key
//	value   a string
//	_etag   a random UUID
//	_ttl    the expiry time, or null
//
// The UUID has version 8 if the value is not JSON. Otherwise it has version 4, which Dapr writes for every value.
//
// Dapr stores the value as an embedded document if a client saves JSON over HTTP. This package can read such documents.
package mongodb

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/fault"
)

// Type is the component type of this store.
const Type = "state.mongodb"

// The fields of a document.
const (
	fieldKey   = "_id"
	fieldValue = "value"
	fieldETag  = "_etag"
	fieldTTL   = "_ttl"
)

// Options are the settings of a store.
type Options struct {
	Metadata component.Values // values of Fields
	Logger   *slog.Logger
	// Actors is whether the store holds actor state, which needs transactions.
	Actors bool
}

// Store implements state.Store and all optional interfaces except state.Watcher. A standalone MongoDB server has no
// transactions. With such a server, Transact returns an error, and Set writes several items one by one.
type Store struct {
	client     *mongo.Client
	settings   settings
	strong     *mongo.Collection // reads see every acknowledged write; writes reach a majority
	eventual   *mongo.Collection // read and write concern of the component
	standalone bool
	log        *slog.Logger
	gate       outside.Gate
}

// Open connects to MongoDB and creates the index that removes expired documents. If MongoDB cannot be reached, Open
// retries until the deadline of ctx. It returns these errors:
//
//   - fault.Invalid for wrong settings
//   - fault.Denied for refused credentials or missing permissions
//   - fault.Unavailable or fault.Timeout if MongoDB does not answer
func Open(ctx context.Context, o Options) (*Store, error) {
	set, err := read(o.Metadata)
	if err != nil {
		return nil, err
	}
	if set.compressed {
		o.Logger.Warn("messages of MongoDB are not compressed: a hostile server could exhaust the memory with them",
			"hint", "omit compressors in the connection settings")
	}
	client, err := mongo.Connect(set.client)
	if err != nil {
		return nil, invalid("the client of MongoDB cannot be made: "+err.Error(), "correct the connection settings")
	}
	s := &Store{client: client, settings: set, log: o.Logger}
	if err = outside.Wait(ctx, s.probe); err == nil {
		err = s.prepare(ctx, o.Actors)
	}
	if err != nil {
		_ = s.Close() // the first error is more useful
		return nil, err
	}
	return s, nil
}

// Ping implements state.Pinger.
func (s *Store) Ping(ctx context.Context) error {
	_, err := s.greet(ctx)
	return err
}

// PingInterval implements state.Pinger.
func (s *Store) PingInterval() time.Duration { return outside.PingInterval }

// greeting is the part of the answer to the command hello that this package reads.
type greeting struct {
	Set      string `bson:"setName"`
	Writable bool   `bson:"isWritablePrimary"`
	Message  string `bson:"msg"` // isdbgrid = mongos
}

// probe checks that MongoDB answers and accepts writes, and determines whether it supports transactions.
func (s *Store) probe(ctx context.Context) error {
	hello, err := s.greet(ctx)
	if err == nil {
		s.standalone = hello.Set == "" && hello.Message != "isdbgrid"
	}
	return err
}

// greet checks that MongoDB answers and accepts writes.
func (s *Store) greet(ctx context.Context) (greeting, error) { return s.repeated(ctx, s.hello) }

// repeated calls hello. If the driver has cancelled the call, repeated tries again, up to three times in total. The
// driver cancels all calls when the handshake of one connection fails, and does not report the cause. The error of a
// later call contains the cause.
func (s *Store) repeated(ctx context.Context, hello func(context.Context) (greeting, error)) (greeting, error) {
	const attempts = 3
	for attempt := 1; ; attempt++ {
		answer, err := hello(ctx)
		switch {
		case !fault.Is(err, fault.Timeout) || !errors.Is(err, context.Canceled) || ctx.Err() != nil:
			return answer, err
		case attempt == attempts:
			return answer, &fault.Error{Code: fault.Unavailable, Op: "mongodb.Open", Err: errors.Unwrap(err),
				Msg: "the driver has closed the connection to MongoDB at " + s.settings.where()}
		}
	}
}

// hello sends one greeting, and checks that the server accepts writes.
func (s *Store) hello(ctx context.Context) (hello greeting, err error) {
	const op = "mongodb.Open"
	bounded, cancel := s.limited(ctx)
	defer cancel()
	err = s.client.Database(s.settings.database).RunCommand(bounded, bson.D{{Key: "hello", Value: 1}},
		options.RunCmd().SetReadPreference(readpref.Primary())).Decode(&hello)
	switch {
	case err != nil:
		return hello, s.failed(op, "", err, reading)
	case !hello.Writable:
		return hello, &fault.Error{Code: fault.Unavailable, Op: op,
			Msg:  "the MongoDB server at " + s.settings.where() + " is not the primary",
			Hint: "name the replica set in the connection settings, and omit directConnection"}
	}
	return hello, nil
}

// prepare opens the collection and creates the index of expiry times, as Dapr does. Set actors if the store will
// contain actor state. Actor state needs transactions, so prepare then returns an error for a standalone server.
func (s *Store) prepare(ctx context.Context, actors bool) error {
	const op = "mongodb.Open"
	if s.standalone && actors {
		return noTransactions(op)
	}
	if s.standalone {
		s.log.Info("MongoDB is a standalone server: transactions are refused, and several items are saved one by one",
			"hint", replicaSetHint)
	}
	s.collections()
	bounded, cancel := s.limited(ctx)
	defer cancel()
	_, err := s.eventual.Indexes().CreateOne(bounded, mongo.IndexModel{
		Keys: bson.D{{Key: fieldTTL, Value: 1}}, Options: options.Index().SetExpireAfterSeconds(0),
	})
	if err != nil {
		return s.failed(op, "", err, unsent)
	}
	return nil
}

// collections opens the collection twice, once for strong and once for eventual consistency. The two differ in their
// read and write concerns. Strong reads are linearizable, except on a standalone server, which does not support such
// reads. On a standalone server, strong reads are local reads, which are always up to date.
func (s *Store) collections() {
	journal := true
	strongRead := readconcern.Linearizable()
	if s.standalone {
		strongRead = readconcern.Local()
	}
	majority := &writeconcern.WriteConcern{W: writeconcern.WCMajority, Journal: &journal}
	database := s.client.Database(s.settings.database)
	s.strong = database.Collection(s.settings.collection, options.Collection().SetReadConcern(strongRead).
		SetReadPreference(readpref.Primary()).SetWriteConcern(majority))
	s.eventual = database.Collection(s.settings.collection, options.Collection().
		SetReadConcern(s.settings.read).SetWriteConcern(s.settings.write))
}

// Close implements state.Store.
func (s *Store) Close() error {
	if !s.gate.Close() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := s.client.Disconnect(ctx); err != nil {
		return fault.Wrap(err, "mongodb.Close", "closing the connections to MongoDB")
	}
	return nil
}

// Features implements state.Featurer.
func (s *Store) Features() []state.Feature {
	if s.standalone {
		return []state.Feature{state.FeatureETag, state.FeatureTTL}
	}
	return []state.Feature{state.FeatureETag, state.FeatureTransactional, state.FeatureTTL}
}

// at returns the collection with the concerns of a level.
func (s *Store) at(level state.Consistency) *mongo.Collection {
	if level == state.Strong {
		return s.strong
	}
	return s.eventual
}

// proof returns the Proof for an operation on one document at the given consistency level.
func (s *Store) proof(level state.Consistency) state.Proof {
	if level == state.Strong || s.standalone {
		return state.Proof{Level: state.Linearizable}
	}
	return state.Proof{Level: state.Stale}
}

// many returns the proof for a read of several documents. Its level is state.Stale, because MongoDB does not read
// several documents at one point in time.
func many() state.Proof { return state.Proof{Level: state.Stale} }

// limited returns a context that ends with ctx or after the component's timeout, whichever is earlier.
func (s *Store) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.settings.timeout)
}
