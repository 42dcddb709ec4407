package pluggable_test

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	components "github.com/dapr/dapr/pkg/proto/components/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/pluggable"
	"github.com/quorate/quorate/component/pluggable/pluggabletest"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/inmemory"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// world is a store with its process.
type world struct {
	store   state.Store
	server  *pluggabletest.State
	process *pluggabletest.Process
	log     *testutil.Output
}

// start opens a store whose process has transactions and ETags. change may change the options.
func start(t *testing.T, change func(*pluggable.Options)) *world {
	t.Helper()
	w := &world{server: &pluggabletest.State{Store: memory(t, inmemory.Options{}), Offers: []string{"ETAG",
		"TRANSACTIONAL"}}, log: &testutil.Output{}}
	folder := pluggabletest.Folder(t)
	w.process = pluggabletest.Start(t, folder, "x", w.server.Register)
	o := options(t, folder, "state.x")
	o.Logger = slog.New(slog.NewTextHandler(w.log, nil))
	if change != nil {
		change(&o)
	}
	var err error
	w.store, err = pluggable.OpenState(soon(t), o)
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Must(t, w.store.Close()) })
	return w
}

func TestRestart_InitBeforeUse(t *testing.T) {
	w := start(t, nil)
	statetest.CheckOutage(t, w.store, w.process.Kill, w.process.Run, "no component listens at "+w.process.Path)
	if n, _ := w.process.Instances.Inits(); n != 2 {
		t.Errorf("Init was called %d times, want once for each process", n)
	}
	if !strings.Contains(w.log.String(), "connected and initialised again") {
		t.Errorf("log: %s", w.log)
	}
}

// TestRestart_NextReadSucceeds restarts a process between two calls.
func TestRestart_NextReadSucceeds(t *testing.T) {
	for name, stop := range map[string]func(*pluggabletest.Process){
		"graceful": (*pluggabletest.Process).Leave, "killed": (*pluggabletest.Process).Kill} {
		t.Run(name, func(t *testing.T) {
			w := start(t, nil)
			testutil.Must(t, statetest.Set(soon(t), w.store, statetest.Put("a||k", "1")))
			stop(w.process)
			w.process.Run()
			statetest.WantValue(t, w.store, "a||k", "1")
		})
	}
}

// TestRestart_ReadIsMadeAgain starts a second process, and then kills the first process while it reads.
func TestRestart_ReadIsMadeAgain(t *testing.T) {
	w := start(t, nil)
	testutil.Must(t, statetest.Set(soon(t), w.store, statetest.Put("a||k", "1")))
	begun := make(chan struct{})
	w.server.Before = func(ctx context.Context, _ string) error {
		close(begun)
		<-ctx.Done()
		return ctx.Err()
	}
	read := make(chan state.Item)
	go func() { read <- statetest.WantValue(t, w.store, "a||k", "1") }()
	<-begun
	folder, _ := filepath.Split(w.process.Path)
	pluggabletest.Start(t, folder, "x", (&pluggabletest.State{Store: w.server.Store, Offers: w.server.Offers}).Register)
	w.process.Kill()
	<-read
}

func TestRestart_CallsAreLinearizable(t *testing.T) {
	w := start(t, nil)
	r := statetest.Record(t, w.store, "a||k", "a||l")
	for range 3 {
		r.More(100)
		w.process.Kill()
		r.Failed(1, fault.Unavailable, fault.Indeterminate)
		w.process.Run()
		r.More(100)
	}
	r.Check()
}

func TestRestart_RefusedInit(t *testing.T) {
	w := start(t, nil)
	w.process.Kill()
	w.process.Instances.Refuse(status.Error(codes.Unknown, "the database is away"))
	w.process.Run()
	testutil.Eventually(t, func() error {
		_, err := statetest.Get(soon(t), w.store, "a||k")
		statetest.WantFault(t, err, fault.Unavailable)
		if !strings.Contains(err.Error(), "the database is away") {
			return err
		}
		return nil
	})
	w.process.Instances.Refuse(nil)
	testutil.Eventually(t, func() error { _, err := statetest.Get(soon(t), w.store, "a||k"); return err })
}

func TestRestart_LostFeature(t *testing.T) {
	w := start(t, nil)
	w.process.Kill()
	w.server.Offers = []string{"ETAG"}
	w.process.Run()
	testutil.Eventually(t, func() error {
		_, err := statetest.Get(soon(t), w.store, "a||k")
		if err == nil || !strings.Contains(err.Error(), "no longer has the feature TRANSACTIONAL") {
			return err
		}
		return nil
	})
}

func TestInit_Errors(t *testing.T) {
	for code, want := range map[codes.Code]fault.Code{codes.Unknown: fault.Internal,
		codes.InvalidArgument: fault.Invalid, codes.Unauthenticated: fault.Denied,
		codes.Unavailable: fault.Unavailable} {
		folder := pluggabletest.Folder(t)
		server := &pluggabletest.State{Store: memory(t, inmemory.Options{})}
		p := pluggabletest.Start(t, folder, "x", server.Register)
		p.Instances.Refuse(status.Error(code, "refused: s3cret\n"+strings.Repeat("x", 1000)))
		o := options(t, folder, "state.x")
		o.Metadata = values(t, component.Property{Name: "password", Value: "s3cret", Sensitive: true})
		_, err := pluggable.OpenState(once(t), o)
		statetest.WantFault(t, err, want, "could not be initialised: "+code.String()+": refused: *** xx")
		if len(err.Error()) > 600 || strings.ContainsAny(err.Error(), "\n") {
			t.Errorf("the text is not bounded: %v", err)
		}
		if n, _ := p.Instances.Inits(); n != 1 {
			t.Errorf("%s: Init was called %d times", code, n)
		}
	}
}

// expiring is a context whose deadline passes when passed is closed.
type expiring struct {
	context.Context
	passed chan struct{}
}

func (e expiring) Done() <-chan struct{} { return e.passed }

func (e expiring) Err() error {
	select {
	case <-e.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func TestInit_HangsUntilDeadline(t *testing.T) {
	folder := pluggabletest.Folder(t)
	waiting := expiring{context.Background(), make(chan struct{})}
	server := &pluggabletest.State{Before: func(ctx context.Context, _ string) error {
		close(waiting.passed) // while the caller waits for Init, not while it dials
		<-ctx.Done()
		return ctx.Err()
	}}
	pluggabletest.Start(t, folder, "x", server.Register)
	_, err := pluggable.OpenState(waiting, options(t, folder, "state.x"))
	statetest.WantFault(t, err, fault.Timeout, "waiting for Init")
}

// TestInit_KeepsEncryptionKeys checks that a process gets all metadata except the keys that encrypt values.
func TestInit_KeepsEncryptionKeys(t *testing.T) {
	key := strings.Repeat("0", 64)
	w := start(t, func(o *pluggable.Options) {
		o.Metadata = values(t, component.Property{Name: "PrimaryEncryptionKey", Value: key, Sensitive: true},
			component.Property{Name: "secondaryEncryptionKey", Value: key, Sensitive: true},
			component.Property{Name: "keyPrefix", Value: "name"}, component.Property{Name: "Some.Name", Value: ""})
	})
	_, got := w.process.Instances.Inits()
	if want := map[string]string{"keyPrefix": "name", "Some.Name": ""}; !maps.Equal(got, want) {
		t.Errorf("the process got %v, want %v", got, want)
	}
}

func TestState_StatusesOfProcess(t *testing.T) {
	w := start(t, nil)
	type codesOf struct{ read, write fault.Code }
	for code, want := range map[codes.Code]codesOf{
		codes.InvalidArgument:    {fault.Invalid, fault.Invalid},
		codes.PermissionDenied:   {fault.Denied, fault.Denied},
		codes.ResourceExhausted:  {fault.Overloaded, fault.Overloaded},
		codes.FailedPrecondition: {fault.Internal, fault.Internal},
		codes.Unimplemented:      {fault.Unimplemented, fault.Unimplemented},
		codes.NotFound:           {"", fault.NotFound},
		codes.DeadlineExceeded:   {fault.Timeout, fault.Indeterminate},
		codes.Unavailable:        {fault.Unavailable, fault.Indeterminate},
		codes.Unknown:            {fault.Unavailable, fault.Indeterminate},
		codes.Internal:           {fault.Unavailable, fault.Indeterminate},
		codes.Canceled:           {fault.Unavailable, fault.Indeterminate},
		codes.DataLoss:           {fault.Unavailable, fault.Indeterminate},
	} {
		w.server.Before = func(context.Context, string) error { return status.Error(code, "why") }
		_, read := statetest.Get(soon(t), w.store, "a||k")
		written := statetest.Set(soon(t), w.store, statetest.Put("a||k", "1"))
		if got := (codesOf{fault.CodeOf(read), fault.CodeOf(written)}); got != want {
			t.Errorf("%s: %v, want %v: %v, %v", code, got, want, read, written)
		}
	}
}

// gRPC reports an answer that is larger than the limit with ResourceExhausted, after the header of the answer. A write
// with such an answer may have been applied.
func TestState_LargeAnswerOfWriteIsIndeterminate(t *testing.T) {
	w := start(t, nil)
	w.server.Before = func(ctx context.Context, _ string) error {
		if err := grpc.SendHeader(ctx, nil); err != nil {
			t.Error(err)
		}
		return status.Error(codes.ResourceExhausted, "received message larger than max")
	}
	_, err := statetest.Get(soon(t), w.store, "a||k")
	statetest.WantFault(t, err, fault.TooLarge, "--max-body-size")
	err = statetest.Set(soon(t), w.store, statetest.Put("a||k", "1"))
	statetest.WantFault(t, err, fault.Indeterminate, "may have been applied")
}

// TestState_ETagErrorNeedsCondition makes the process answer unconditional writes with the error for a wrong ETag.
func TestState_ETagErrorNeedsCondition(t *testing.T) {
	w := start(t, nil)
	for _, code := range []codes.Code{codes.FailedPrecondition, codes.InvalidArgument} {
		w.server.Before = func(_ context.Context, method string) error {
			if method == "Get" || method == "BulkGet" {
				return nil
			}
			return pluggabletest.ETagError(code)
		}
		plain, conditional := statetest.Put("a||k", "1"), statetest.Put("a||k", "1")
		conditional.ETag = "e"
		for _, items := range [][]state.Write{{plain}, {plain, plain}} {
			if err := statetest.Set(soon(t), w.store, items...); err == nil || fault.Is(err, fault.Conflict) {
				t.Errorf("%s, %d items without a condition: %v", code, len(items), err)
			}
		}
		for _, items := range [][]state.Write{{conditional}, {plain, conditional}, {conditional, conditional}} {
			err := statetest.Set(soon(t), w.store, items...)
			statetest.WantFault(t, err, fault.Conflict)
			if fault.KeyOf(err) != "a||k" {
				t.Errorf("the conflict names %q", fault.KeyOf(err))
			}
		}
	}
}

func TestState_CallEndsWithItsContext(t *testing.T) {
	w := start(t, nil)
	w.server.Before = func(ctx context.Context, _ string) error {
		<-ctx.Done()
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := statetest.Get(ctx, w.store, "a||k")
	statetest.WantFault(t, err, fault.Timeout)
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err = statetest.Set(ctx, w.store, statetest.Put("a||k", "1"))
	statetest.WantFault(t, err, fault.Indeterminate, "may have been applied")
}

func TestState_ImpossibleAnswers(t *testing.T) {
	w := start(t, func(o *pluggable.Options) { o.MaxMessage = 1 << 20 })
	item := func(key string) *components.BulkStateItem {
		return &components.BulkStateItem{Key: key, Data: []byte("1"), Etag: &components.Etag{Value: "e"}}
	}
	for name, c := range map[string]struct {
		items []*components.BulkStateItem
		code  fault.Code
		text  string
	}{
		"a key that was not requested": {[]*components.BulkStateItem{item("a||k"), item("b||k")},
			fault.Corrupt, "was not requested"},
		"a key twice": {[]*components.BulkStateItem{item("a||k"), item("a||k")}, fault.Corrupt, "twice"},
		"a long answer": {[]*components.BulkStateItem{{Key: "a||k", Data: make([]byte, 2<<20)}},
			fault.TooLarge, "larger than the limit"},
	} {
		w.server.AnswerBulk = func(*components.BulkGetRequest) *components.BulkGetResponse {
			return &components.BulkGetResponse{Items: c.items}
		}
		_, err := state.AbilitiesOf(w.store).BulkGetter.BulkGet(soon(t),
			state.BulkGetRequest{Keys: []string{"a||k", "a||l"}})
		if !fault.Is(err, c.code) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v with code %q", name, err, fault.CodeOf(err))
		}
	}
	for name, etag := range map[string]string{"long": strings.Repeat("e", 1025), "of two lines": "a\r\nb: c"} {
		w.server.AnswerGet = func(*components.GetRequest) *components.GetResponse {
			return &components.GetResponse{Data: []byte("1"), Etag: &components.Etag{Value: etag}}
		}
		if _, err := statetest.Get(soon(t), w.store, "a||k"); !fault.Is(err, fault.Corrupt) {
			t.Errorf("an ETag that is %s: %v", name, err)
		}
	}
	w.server.AnswerGet = func(*components.GetRequest) *components.GetResponse {
		return &components.GetResponse{Data: make([]byte, 2<<20)}
	}
	_, err := statetest.Get(soon(t), w.store, "a||k")
	statetest.WantFault(t, err, fault.TooLarge, "--max-body-size")
}

func TestState_BulkAnswerOfParts(t *testing.T) {
	w := start(t, nil)
	w.server.AnswerBulk = func(*components.BulkGetRequest) *components.BulkGetResponse {
		return &components.BulkGetResponse{Items: []*components.BulkStateItem{
			{Key: "a||bad", Error: "disk\nfull"}, {Key: "a||k", Data: []byte(`"v"`), Etag: &components.Etag{Value: "e"},
				Metadata: map[string]string{"ttlExpireTime": "soon"}}}}
	}
	items, err := state.AbilitiesOf(w.store).BulkGetter.BulkGet(soon(t), state.BulkGetRequest{
		Keys: []string{"a||k", "a||absent", "a||bad", "a||k"}, MaxBytes: 6})
	testutil.Must(t, err)
	if !items[0].Found() || items[0].ETag != "e" || !items[0].Expires.IsZero() ||
		items[1].Found() || items[1].Err != nil || !bytes.Equal(items[3].Value, items[0].Value) ||
		!fault.Is(items[2].Err, fault.Internal) || !strings.Contains(items[2].Err.Error(), "disk full") {
		t.Errorf("%+v", items)
	}
	_, err = state.AbilitiesOf(w.store).BulkGetter.BulkGet(soon(t), state.BulkGetRequest{
		Keys: []string{"a||k", "a||bad", "a||k"}, MaxBytes: 5})
	statetest.WantFault(t, err, fault.TooLarge)
}

func TestState_BulkReadOneByOneStopsAboveLimit(t *testing.T) {
	w := start(t, nil)
	w.server.NoBulk = true
	var reads atomic.Int64
	w.server.AnswerGet = func(*components.GetRequest) *components.GetResponse {
		reads.Add(1)
		return &components.GetResponse{Data: []byte(`"12345678"`), Etag: &components.Etag{Value: "e"}}
	}
	r := state.BulkGetRequest{MaxBytes: 1000}
	for i := range 100 {
		r.Keys = append(r.Keys, "a||"+strconv.Itoa(i))
	}
	items, err := state.AbilitiesOf(w.store).BulkGetter.BulkGet(soon(t), r)
	if err != nil || len(items) != 100 || string(items[99].Value) != `"12345678"` {
		t.Fatalf("%d items, %v", len(items), err)
	}
	reads.Store(0)
	r.MaxBytes = 35
	_, err = state.AbilitiesOf(w.store).BulkGetter.BulkGet(soon(t), r)
	statetest.WantFault(t, err, fault.TooLarge, "35 bytes")
	if n := reads.Load(); n > 20 { // 4 values exceed the limit, and some reads run at the same time
		t.Errorf("read %d keys", n)
	}
}

// TestState_WithoutETags reads from a process that returns no ETags, and writes with conditions.
func TestState_WithoutETags(t *testing.T) {
	folder := pluggabletest.Folder(t)
	server := &pluggabletest.State{Store: memory(t, inmemory.Options{}), NoETags: true}
	pluggabletest.Start(t, folder, "x", server.Register)
	s, err := pluggable.OpenState(soon(t), options(t, folder, "state.x"))
	testutil.Must(t, err)
	defer func() { testutil.Must(t, s.Close()) }()
	testutil.Must(t, statetest.Set(soon(t), s, statetest.Put("a||k", "1")))
	if item := statetest.WantValue(t, s, "a||k", "1"); !item.Found() || item.ETag != "" || !item.Unversioned {
		t.Errorf("%+v", item)
	}
	if item, err := statetest.Get(soon(t), s, "a||absent"); err != nil || item.Found() {
		t.Errorf("%+v, %v", item, err)
	}
	create := statetest.Put("a||k", "2")
	create.Concurrency = state.FirstWrite
	statetest.WantFault(t, statetest.Set(soon(t), s, create), fault.Invalid, "does not have the feature ETAG")
	update := statetest.Put("a||k", "2")
	update.ETag = "of another store"
	statetest.WantFault(t, statetest.Set(soon(t), s, update), fault.Conflict)
	statetest.WantValue(t, s, "a||k", "1")
}

func TestState_RequestThatCannotBeSent(t *testing.T) {
	w := start(t, nil)
	put := statetest.Put("a||k", "1")
	put.Metadata = map[string]string{"name": "\xff"}
	statetest.WantFault(t, statetest.Set(soon(t), w.store, put), fault.Invalid, "UTF-8")
}

// TestState_WhatProcessGets checks the requests that a process receives for writes.
func TestState_WhatProcessGets(t *testing.T) {
	w := start(t, nil)
	put := state.Write{Key: "a||k", Value: []byte("\x00"), ContentType: state.OctetStream, TTL: state.TTL{Set: true,
		Seconds: 7}, Metadata: map[string]string{"TTLInSeconds": "100", "ContentType": "application/json", "more": "x"}}
	seen := make(chan *components.SetRequest, 1)
	w.server.SeenSet = func(r *components.SetRequest) { seen <- r }
	testutil.Must(t, statetest.Set(soon(t), w.store, put))
	r := <-seen
	got := r.GetMetadata()
	want := map[string]string{"ttlInSeconds": "7", "contentType": state.OctetStream, "more": "x"}
	if !maps.Equal(got, want) || r.GetContentType() != state.OctetStream || r.GetEtag() != nil ||
		r.GetOptions().GetConcurrency() != components.StateOptions_CONCURRENCY_UNSPECIFIED ||
		r.GetOptions().GetConsistency() != components.StateOptions_CONSISTENCY_STRONG {
		t.Errorf("the process got %v with metadata %v", r, got)
	}
	put = state.Write{Key: "a||k", Value: []byte("1"), TTL: state.TTL{Set: true}, Metadata: map[string]string{
		"contentType": "application/json"}}
	testutil.Must(t, statetest.Set(soon(t), w.store, put))
	if r := <-seen; r.GetMetadata()["ttlInSeconds"] != "-1" || r.GetContentType() != "application/json" {
		t.Errorf("the process got %v", r)
	}
	// Many components ignore an ETag without first-write concurrency.
	put = state.Write{Key: "a||k", Value: []byte("2"), ETag: "old"}
	statetest.WantFault(t, statetest.Set(soon(t), w.store, put), fault.Conflict)
	if r := <-seen; r.GetEtag().GetValue() != "old" ||
		r.GetOptions().GetConcurrency() != components.StateOptions_CONCURRENCY_FIRST_WRITE {
		t.Errorf("the process got %v", r)
	}
}

func TestClose_EndsCalls(t *testing.T) {
	w := start(t, nil)
	begun := make(chan struct{}, 2)
	w.server.Before = func(ctx context.Context, _ string) error {
		begun <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	ended := make(chan error, 2)
	go func() { _, err := statetest.Get(soon(t), w.store, "a||k"); ended <- err }()
	go func() { ended <- statetest.Set(soon(t), w.store, statetest.Put("a||k", "1")) }()
	<-begun
	<-begun
	testutil.Must(t, w.store.Close())
	got := []fault.Code{fault.CodeOf(<-ended), fault.CodeOf(<-ended)}
	if slices.Sort(got); !slices.Equal(got, []fault.Code{fault.Indeterminate, fault.Unavailable}) {
		t.Errorf("calls in progress ended with %v", got)
	}
}

// TestSecrets_ErrorsHaveNoTextOfProcess makes the process answer with an error text that quotes a secret.
func TestSecrets_ErrorsHaveNoTextOfProcess(t *testing.T) {
	folder := pluggabletest.Folder(t)
	server := &pluggabletest.Secrets{Secrets: map[string]map[string]string{"a": {"a": "hunter2"}, "none": {}}}
	pluggabletest.Start(t, folder, "safe", server.Register)
	s, err := pluggable.OpenSecrets(soon(t), options(t, folder, "secretstores.safe"))
	testutil.Must(t, err)
	defer func() { testutil.Must(t, s.Close()) }()
	for code, want := range map[codes.Code]fault.Code{codes.Unknown: fault.Unavailable, codes.NotFound: fault.NotFound,
		codes.PermissionDenied: fault.Denied, codes.Internal: fault.Unavailable, codes.InvalidArgument: fault.Invalid,
		codes.Unimplemented: fault.Unavailable, codes.ResourceExhausted: fault.Overloaded} {
		server.Before = func(context.Context, string) error { return status.Error(code, "hunter2 is refused") }
		_, one := s.Get(soon(t), "a", nil)
		statetest.WantFault(t, one, want)
		_, all := s.Bulk(soon(t), nil)
		statetest.WantFault(t, all, want)
		if strings.Contains(one.Error()+all.Error(), "hunter2") {
			t.Errorf("%s: an error shows the secret: %v, %v", code, one, all)
		}
	}
	server.Before = nil
	for _, name := range []string{"none", "absent", ""} {
		if secret, err := s.Get(soon(t), name, nil); !fault.Is(err, fault.NotFound) {
			t.Errorf("secret %q: %v, %v", name, secret, err)
		}
	}
	for i := range 10_001 {
		server.Secrets[strings.Repeat("n", 5)+string(rune(0x4e00+i))] = map[string]string{"k": "v"}
	}
	_, err = s.Bulk(soon(t), nil)
	statetest.WantFault(t, err, fault.TooLarge)
}

// Without transactions, a Set may save only some items. The error is then fault.Indeterminate, because callers repeat
// a request after fault.Overloaded.
func TestState_PartOfItemsIsSaved(t *testing.T) {
	for _, noBulk := range []bool{false, true} {
		sets := 0
		server := &pluggabletest.State{Store: memory(t, inmemory.Options{}), Offers: []string{"ETAG"}}
		server.Before = func(_ context.Context, method string) error {
			switch {
			case method == "BulkSet" && noBulk:
				return status.Error(codes.Unimplemented, "no bulk writes")
			case method == "Set":
				if sets++; sets == 2 {
					return status.Error(codes.ResourceExhausted, "too busy")
				}
			}
			return nil
		}
		folder := pluggabletest.Folder(t)
		pluggabletest.Start(t, folder, "x", server.Register)
		store, err := pluggable.OpenState(soon(t), options(t, folder, "state.x"))
		testutil.Must(t, err)
		created, plain := statetest.Put("a||k", "1"), statetest.Put("a||l", "1")
		if !noBulk {
			created.Concurrency = state.FirstWrite // a condition, so that the items are not sent in one call
		}
		err = statetest.Set(soon(t), store, created, plain)
		statetest.WantFault(t, err, fault.Indeterminate, "may have been saved", "too busy")
		statetest.WantValue(t, store, "a||k", "1")
		testutil.Must(t, store.Close())
	}
}
