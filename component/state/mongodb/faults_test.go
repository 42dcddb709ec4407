package mongodb_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/mongodb"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// opening returns a function that opens a store with the settings in pairs, and closes it again.
func opening(t *testing.T, o mongodb.Options, pairs ...string) func(context.Context) error {
	t.Helper()
	return func(ctx context.Context) error {
		t.Helper()
		s, err := open(ctx, t, o, pairs...)
		if err == nil {
			_ = s.Close()
		}
		return err
	}
}

func TestOpen_Unreachable(t *testing.T) {
	t.Parallel()
	address := "127.0.0.1:" + statetest.FreePort(t)
	err := statetest.WantOpenFault(t, opening(t, mongodb.Options{}, "host", address, "username", "shop", "password",
		"hidden"), fault.Unavailable, "no MongoDB can be reached at "+address, `"daprStore"`)
	if strings.Contains(err.Error(), "hidden") {
		t.Errorf("the error shows the password: %v", err)
	}
}

func TestOpen_WaitsForServer(t *testing.T) {
	s := start(t)
	s.kill()
	address := uri(s)
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), testutil.Patience)
		defer cancel()
		store, err := open(ctx, t, mongodb.Options{}, "connectionString", address, "operationTimeout", "1s")
		if err == nil {
			err = store.Close()
		}
		done <- err
	}()
	s.run()
	testutil.Must(t, <-done)
}

func TestOpen_Settings(t *testing.T) {
	for want, pairs := range map[string][]string{
		"connectionString is missing":        {},
		"both host and server":               {"host", "a", "server", "b"},
		"connectionString is given, and":     {"connectionString", "mongodb://a", "host", "b"},
		"connection settings of MongoDB can": {"connectionString", "mongodb://u:hid@den@h:x/"},
	} {
		err := statetest.WantOpenFault(t, opening(t, mongodb.Options{}, pairs...), fault.Invalid, want)
		if strings.Contains(err.Error(), "hid@den") {
			t.Errorf("the error shows the password: %v", err)
		}
	}
	for want, pairs := range map[string][]string{
		"neither \"majority\" nor": {"writeconcern", "0"},
		"none of local, majority":  {"readconcern", "strong"},
		"less than a second":       {"operationTimeout", "10ms"},
	} {
		if _, err := checked(pairs...); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v; want %q", pairs, err, want)
		}
	}
}

func TestOpen_Refusals(t *testing.T) {
	t.Parallel()
	s := start(t)
	for code, want := range map[int32]fault.Code{18: fault.Denied, 13: fault.Denied, 85: fault.Invalid,
		13297: fault.Invalid, 14031: fault.ReadOnly} {
		s.fail("createIndexes", answers(refusal(code)))
		statetest.WantOpenFault(t, opening(t, mongodb.Options{}, "connectionString", uri(s)), want)
	}
	s.fail("createIndexes", nil)
	s.fail("saslStart", answers(refusal(18)))
	login := strings.Replace(uri(s), "//", "//shop:hidden@", 1) + "&authMechanism=SCRAM-SHA-256"
	statetest.WantOpenFault(t, opening(t, mongodb.Options{}, "connectionString", login), fault.Denied,
		"refused the user or the password")
}

func TestOpen_Secondary(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.secondary = true
	t.Run("direct connection", func(t *testing.T) {
		t.Parallel()
		direct := "mongodb://" + s.Address() + "/?directConnection=true"
		statetest.WantOpenFault(t, opening(t, mongodb.Options{}, "connectionString", direct), fault.Unavailable,
			"is not the primary", "directConnection")
	})
	t.Run("replica set", func(t *testing.T) {
		t.Parallel()
		statetest.WantOpenFault(t, opening(t, mongodb.Options{}, "connectionString", uri(s)), fault.Unavailable,
			"has no primary")
	})
}

func TestStore_Standalone(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.standalone = true
	statetest.WantOpenFault(t, opening(t, mongodb.Options{Actors: true}, "connectionString", uri(s)), fault.Invalid,
		"standalone", "replica set")
	var log bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
	defer cancel()
	store, err := open(ctx, t, mongodb.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))},
		"connectionString", uri(s))
	testutil.Must(t, err)
	defer store.Close()
	if !strings.Contains(log.String(), "level=INFO") || !strings.Contains(log.String(), "transactions are refused") {
		t.Errorf("the log is %s", &log)
	}
	if got := state.FeaturesOf(store); slices.Contains(got, state.FeatureTransactional) {
		t.Errorf("features are %v", got)
	}
	testutil.Must(t, statetest.Set(ctx, store, statetest.Put("a||k", "1"), statetest.Put("a||l", "2")))
	statetest.WantValue(t, store, "a||l", "2")
	_, err = store.Transact(ctx, state.TransactRequest{Operations: []state.Operation{{Write: statetest.Put("a||k",
		"2")}}})
	statetest.WantFault(t, err, fault.Invalid, "standalone", "replica set")
	stale := state.Write{Key: "a||l", Value: []byte("3"), ETag: "stale"}
	err = statetest.Set(ctx, store, statetest.Put("a||k", "3"), stale)
	statetest.WantFault(t, err, fault.Conflict, "the items before it were saved", "ETag")
	statetest.WantValue(t, store, "a||k", "3")
	for code, text := range map[int32]string{10107: "not the primary", 14031: "disk"} { // a single write was not done
		var updates atomic.Int64
		s.fail("update", func(bson.D) bson.D {
			if updates.Add(1) == 1 {
				return nil
			}
			return refusal(code)
		})
		err = statetest.Set(ctx, store, statetest.Put("a||k", "4"), statetest.Put("a||l", "4"))
		statetest.WantFault(t, err, fault.Indeterminate, "the items before it were saved", text)
	}
	for _, find := range s.sent("find") {
		if level := field(field(find, "readConcern").(bson.D), "level"); level != "local" {
			t.Errorf("read concern of a standalone server is %v", level)
		}
	}
}

func TestStore_RecoversFromOutage(t *testing.T) {
	t.Parallel()
	s := start(t)
	store := opened(t, s, "operationTimeout", "1s")
	statetest.CheckOutage(t, store, s.kill, s.run, "no MongoDB can be reached")
}

// TestStore_LostAnswerMakesWritesIndeterminate loses the answer to a write, and checks that the store sent the write
// only once.
func TestStore_LostAnswerMakesWritesIndeterminate(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string]bson.D{"no answer": hang, "connection ends": cut} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			store := opened(t, s, "operationTimeout", "3s")
			two := []state.Write{statetest.Put("a||k", "2"), statetest.Put("a||l", "2")}
			s.fail("update", answers(reply))
			statetest.WantFault(t, statetest.Set(t.Context(), store, two[0]), fault.Indeterminate,
				"may have been applied")
			if n := len(s.sent("update")); n != 1 {
				t.Errorf("the update was sent %d times", n)
			}
			s.fail("update", nil)
			s.fail("commitTransaction", func(body bson.D) bson.D {
				s.finish("commitTransaction", body)
				return reply
			})
			statetest.WantFault(t, statetest.Set(t.Context(), store, two...), fault.Indeterminate,
				"may have been applied")
			s.fail("commitTransaction", nil)
			testutil.Eventually(t, func() error {
				_, err := statetest.Get(t.Context(), store, "a||l")
				return err
			})
			statetest.WantValue(t, store, "a||l", "2")
			s.fail("delete", answers(reply))
			_, err := store.Delete(t.Context(), state.DeleteRequest{Key: "a||k"})
			statetest.WantFault(t, err, fault.Indeterminate, "read the key")
			if n := len(s.sent("delete")); n != 1 {
				t.Errorf("the delete was sent %d times", n)
			}
			s.fail("delete", nil)
			testutil.Eventually(t, func() error { return statetest.Set(t.Context(), store, two...) })
		})
	}
}

func TestStore_AnswersOfServer(t *testing.T) {
	t.Parallel()
	s := start(t)
	store := opened(t, s)
	writeConcern := bson.D{{Key: "ok", Value: 1}, {Key: "n", Value: 1}, {Key: "nModified", Value: 1},
		{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: 64}, {Key: "errmsg", Value: "timed out"}}}}
	for _, c := range []struct {
		reply bson.D
		code  fault.Code
		text  string
	}{
		{refusal(10107), fault.Unavailable, "not the primary"},
		{refusal(11602), fault.Indeterminate, "may have been applied"},
		{refusal(50), fault.Indeterminate, "may have been applied"},
		{refusal(13), fault.Denied, "readWrite"},
		{refusal(10334), fault.TooLarge, "16 MiB"},
		{refusal(14031), fault.ReadOnly, "disk"},
		{refusal(462, "SystemOverloadedError"), fault.Overloaded, "overloaded"},
		{refusal(9), fault.Internal, "answered with an error"},
		{writeConcern, fault.Indeterminate, "too few servers"},
	} {
		s.fail("update", answers(c.reply))
		err := statetest.Set(t.Context(), store, statetest.Put("a||k", "1"))
		if !fault.Is(err, c.code) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%v: %v with code %q, want %q", c.reply, err, fault.CodeOf(err), c.code)
		}
	}
	s.fail("update", nil)
	s.fail("find", answers(hang))
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := statetest.Get(ctx, store, "a||k")
	statetest.WantFault(t, err, fault.Timeout, "did not answer in time")
	s.fail("find", nil)
	large := state.Write{Key: "a||k", Value: make([]byte, 16<<20)}
	statetest.WantFault(t, statetest.Set(t.Context(), store, large), fault.TooLarge, "16 MiB")
	_, err = store.Set(t.Context(), state.SetRequest{Items: []state.Write{statetest.Put("a||k", "1")}, RequestID: "r"})
	statetest.WantFault(t, err, fault.Invalid, "request ids")
}

// TestStore_WriteConflictsEnd checks that a transaction with a write conflict at every attempt finally returns an
// error.
func TestStore_WriteConflictsEnd(t *testing.T) {
	t.Parallel()
	s := start(t)
	store := opened(t, s, "operationTimeout", "1s")
	s.fail("update", answers(refusal(112, "TransientTransactionError")))
	err := statetest.Set(t.Context(), store, statetest.Put("a||k", "1"), statetest.Put("a||l", "1"))
	statetest.WantFault(t, err, fault.Overloaded, "write the same keys")
	if n := len(s.sent("update")); n < 2 {
		t.Errorf("the transaction was tried %d times", n)
	}
}
