package mongodb

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/fault"
)

// replicaSetHint is the hint in errors and logs about a standalone server.
const replicaSetHint = "give MongoDB a replica set; one server is enough (mongod --replSet, rs.initiate())"

func noTransactions(op string) error {
	return &fault.Error{Code: fault.Invalid, Op: op, Hint: replicaSetHint,
		Msg: "MongoDB is a standalone server, which has no transactions"}
}

// transaction checks all conditions against a snapshot and executes the operations. If another client changes one of
// the documents before the commit, MongoDB aborts the transaction, and the error is transient.
func (c *change) transaction(ctx context.Context) error {
	session, err := c.client.StartSession()
	if err != nil {
		return c.failed(c.op, c.ops[0].Key, err, unsent)
	}
	// EndSession aborts an unfinished transaction. It gets a second, because ctx may have ended.
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	defer session.EndSession(bounded)
	journal := true
	err = session.StartTransaction(options.Transaction().SetReadConcern(readconcern.Snapshot()).
		SetReadPreference(readpref.Primary()).
		SetWriteConcern(&writeconcern.WriteConcern{W: writeconcern.WCMajority, Journal: &journal}))
	if err == nil {
		err = c.carryOut(mongo.NewSessionContext(ctx, session))
	}
	if err != nil {
		if _, ours := fault.As(err); ours || transient(err) {
			return err
		}
		return c.failed(c.op, c.ops[0].Key, err, unsent) // the transaction was not committed
	}
	return c.commit(ctx, session)
}

// carryOut checks the conditions and writes, within a transaction.
func (c *change) carryOut(ctx context.Context) error {
	current, err := c.current(ctx)
	if err != nil {
		return err
	}
	if err := outside.Permit(c.op, c.ops, current); err != nil {
		return err
	}
	_, err = c.strong.BulkWrite(ctx, c.models(), options.BulkWrite().SetOrdered(true))
	return err
}

// current returns the ETags of the keys that exist. It returns nil if no operation has a condition, because then the
// ETags are not needed.
func (c *change) current(ctx context.Context) (map[string]string, error) {
	conditional := func(o state.Operation) bool { return outside.Conditional(&o) }
	if !slices.ContainsFunc(c.ops, conditional) {
		return nil, nil
	}
	filter := bson.D{{Key: fieldKey, Value: bson.D{{Key: "$in", Value: slices.Sorted(maps.Keys(c.last))}}}, alive()}
	cursor, err := c.strong.Find(ctx, filter, options.Find().SetProjection(bson.D{{Key: fieldETag, Value: 1}}))
	if err != nil {
		return nil, err
	}
	defer cursor.Close(context.WithoutCancel(ctx)) //nolint:errcheck // what matters has been read
	out := map[string]string{}
	for cursor.Next(ctx) {
		var d document
		if err := cursor.Decode(&d); err != nil {
			return nil, err
		}
		if _, ours := c.last[d.Key]; !ours {
			return nil, stranger(c.op)
		}
		item := d.described()
		if item.Err != nil {
			return nil, item.Err
		}
		out[d.Key] = item.ETag
	}
	return out, cursor.Err()
}

// commit commits the transaction, and repeats the commit while its outcome is unknown. This is safe because MongoDB
// executes a commit only once. A transient error means that nothing was written. After any other error, the transaction
// may have been committed.
func (c *change) commit(ctx context.Context, session *mongo.Session) error {
	for {
		err := session.CommitTransaction(ctx)
		if err == nil || transient(err) {
			return err
		}
		if !hasLabel(err, labelUnknownCommit) || ctx.Err() != nil {
			return c.lost(c.op, c.ops[0].Key, err)
		}
		select {
		case <-ctx.Done():
			return c.lost(c.op, c.ops[0].Key, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Labels of MongoDB's errors.
const (
	labelTransient     = "TransientTransactionError"
	labelUnknownCommit = "UnknownTransactionCommitResult"
	labelOverloaded    = "SystemOverloadedError"
)

func hasLabel(err error, label string) bool {
	var labelled mongo.LabeledError
	return errors.As(err, &labelled) && labelled.HasErrorLabel(label)
}

// transient reports whether err means that a transaction has conflicted with another writer. In this case, the
// transaction has written nothing.
func transient(err error) bool {
	if mongo.IsDuplicateKeyError(err) { // two writers created the same key
		return true
	}
	const writeConflict = 112
	return slices.Contains(mongo.ErrorCodes(err), writeConflict) ||
		hasLabel(err, labelTransient) && !hasLabel(err, labelUnknownCommit) && !mongo.IsNetworkError(err)
}
