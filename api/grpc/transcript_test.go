package grpc_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	commonv1 "github.com/dapr/dapr/pkg/proto/common/v1"
	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/http/transcript"
)

// The transcripts recorded over HTTP have the same outcomes over gRPC. The exceptions are those about malformed JSON,
// paths and verbs, listings, browsers and probes, which gRPC cannot express.
func TestTranscripts_MatchHTTP(t *testing.T) {
	t.Parallel()
	var said, all atomic.Int64
	t.Cleanup(func() {
		if said.Load() < all.Load()/2 {
			t.Errorf("only %d of %d steps ran over gRPC", said.Load(), all.Load())
		}
		t.Logf("%d of %d steps ran over gRPC", said.Load(), all.Load())
	})
	for _, file := range transcripts(t) {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(filepath.Base(filepath.Dir(file))+"/"+name, func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if name == "small" { // the transcript refers to ETags of writes, which gRPC does not return
				data = bytes.ReplaceAll(data, []byte("<etag 2>"), []byte("<etag 1>"))
			}
			want, err := transcript.Parse(data)
			if err != nil {
				t.Fatal(err)
			}
			f := newFixture(t)
			f.Adapt(name)
			f.RequestTimeout = max(f.RequestTimeout, time.Second) // the timeout also bounds the arrival of a message
			f.refit()
			got, err := want.Replay(t.Context(), over{f.client(t)}, transcript.Options{})
			if err != nil {
				t.Fatal(err)
			}
			here := 0
			for i, step := range want.Steps {
				if got.Steps[i].Response.Status == unsayable {
					continue
				}
				here++
				if diff := cmp.Diff(outcomeOf(step), outcomeOf(got.Steps[i])); diff != "" {
					t.Errorf("%s (-HTTP +gRPC):\n%s", step.Title, diff)
				}
			}
			if here == 0 {
				t.Error("no step was run")
			}
			said.Add(int64(here))
			all.Add(int64(len(want.Steps)))
		})
	}
}

// transcripts returns the names of the transcripts with steps that gRPC can express.
func transcripts(t *testing.T) (out []string) {
	t.Helper()
	onlyHTTP := map[string]bool{
		// no listing, no browser
		"list": true, "any-host": true, "browsers": true, "origins": true, "origins-any": true, "origins-token": true,
		// other messages, which have their own tests
		"health": true, "degraded": true, "not-ready": true, "unplaced": true, "metadata": true,
		"locks-none":    true, // steps without a gRPC form
		"configuration": true, "configuration-none": true,
		"jobs":      true,
		"publish":   true,
		"reminders": true,
		"workflows": true,
		"body-size": true, // the limit counts bytes of another encoding
	}
	for _, dir := range []string{"contract", "face"} {
		files, err := filepath.Glob(filepath.Join("..", "http", "testdata", dir, "*.txt"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no transcripts: %v", err)
		}
		for _, file := range files {
			if !onlyHTTP[strings.TrimSuffix(filepath.Base(file), ".txt")] {
				out = append(out, file)
			}
		}
	}
	return out
}

// outcome is the part of an answer that both protocols can express.
type outcome struct {
	Status                      int
	ETag, Expires, Level        string
	Code, Message, Reason, Body string
}

func outcomeOf(s transcript.Step) outcome {
	r := s.Response
	out := outcome{Status: r.Status, Expires: r.Header.Get("Metadata.ttlexpiretime"),
		Level: r.Header.Get("Quorate-Consistency")}
	if r.Status < 400 {
		if r.Status == http.StatusOK {
			out.ETag = r.Header.Get("Etag")
		}
		out.Body = compact(r.Body)
		return out
	}
	var failure struct {
		ErrorCode, Message string
		Details            []struct{ Reason string }
	}
	_ = json.Unmarshal(r.Body, &failure)
	out.Code, out.Message = failure.ErrorCode, failure.Message
	if len(failure.Details) > 0 {
		out.Reason = failure.Details[0].Reason
	}
	return out
}

// compact normalizes JSON: without spaces and without unneeded escapes.
func compact(body []byte) string {
	var b bytes.Buffer
	if json.Compact(&b, body) != nil {
		return string(body)
	}
	return unescaped(b.String())
}

// unescaped returns JSON with its strings as encoding/json writes them.
func unescaped(text string) string {
	return strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&", `\u2028`, "\u2028").Replace(text)
}

// unsayable is the status of a step that gRPC cannot express.
const unsayable = 0

// over sends the steps of a transcript over gRPC.
type over struct{ client runtimev1.DaprClient }

// errUnsayable is the error of a request that gRPC messages cannot express.
var errUnsayable = errors.New("cannot be expressed over gRPC")

func (o over) Do(ctx context.Context, r transcript.Request) (transcript.Response, error) {
	var header metadata.MD
	for _, h := range r.Header {
		switch strings.ToLower(h.Name) {
		case "quorate-session", "quorate-request-id", "quorate-lock", "quorate-lock-revision", "dapr-api-token",
			"traceparent":
			ctx = metadata.AppendToOutgoingContext(ctx, h.Name, h.Value)
		}
	}
	response, err := o.say(ctx, r, &header)
	if errors.Is(err, errUnsayable) {
		return transcript.Response{Status: unsayable, Header: http.Header{}}, nil
	}
	if st, ok := status.FromError(err); err != nil && ok {
		return failed(st), nil
	}
	if err != nil {
		return response, err
	}
	for _, name := range []string{"Quorate-Session", "Quorate-Consistency", "Quorate-Age"} {
		for _, v := range header.Get(name) {
			response.Header.Set(name, v)
		}
	}
	return response, nil
}

// failed converts a gRPC status to an HTTP answer with the same error.
func failed(st *status.Status) transcript.Response {
	as := map[codes.Code]int{
		codes.InvalidArgument: 400, codes.FailedPrecondition: 400, codes.Aborted: 409, codes.PermissionDenied: 403,
		codes.Unauthenticated: 401, codes.Internal: 500, codes.Unimplemented: 500, codes.Unavailable: 500,
		codes.DeadlineExceeded: 500, codes.Unknown: 500,
	}
	body := map[string]any{"message": st.Message()}
	for _, d := range st.Details() {
		info, ok := d.(*errdetails.ErrorInfo)
		if !ok {
			continue
		}
		code, reason := info.GetReason(), info.GetMetadata()["reason"]
		if known := info.GetMetadata()["errorCode"]; known != "" {
			code, reason = known, code
		}
		if code == api.CodeOperationUnknown { // the status of this error differs between HTTP and gRPC, as in Dapr
			as[codes.Unimplemented] = 400
		}
		if body["errorCode"] = code; reason != "" {
			body["details"] = []map[string]string{{"reason": reason}}
		}
	}
	text, _ := json.Marshal(body)
	return transcript.Response{Status: as[st.Code()], Header: http.Header{}, Body: text}
}

// call is one request of a transcript, split into its parts.
type call struct {
	verb, store, rest string // rest: the key, "bulk" or "transaction"
	query             url.Values
	more              map[string]string // metadata of the query
}

func (o over) say(ctx context.Context, r transcript.Request, header *metadata.MD) (transcript.Response, error) {
	path, query, _ := strings.Cut(r.Target, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		return transcript.Response{}, errUnsayable
	}
	c := call{verb: r.Method, query: values, more: map[string]string{}}
	for name, v := range values {
		if short, ok := strings.CutPrefix(name, "metadata."); ok {
			c.more[short] = v[0]
		}
	}
	if rest, ok := strings.CutPrefix(path, "/v1.0/actors/"); ok {
		return o.sayActor(ctx, r, rest, header)
	}
	if rest, ok := strings.CutPrefix(path, "/v1.0/secrets/"); ok && r.Method == "GET" {
		return o.secret(ctx, rest, c.more)
	}
	if rest, ok := strings.CutPrefix(path, "/v1.0/bindings/"); ok && (r.Method == "POST" || r.Method == "PUT") {
		return o.binding(ctx, strings.TrimSuffix(rest, "/"), r.Body)
	}
	rest, ok := strings.CutPrefix(path, "/v1.0/state/")
	if !ok || !utf8.Valid(r.Body) {
		return transcript.Response{}, errUnsayable
	}
	store, key, hasKey := strings.Cut(rest, "/")
	c.store, err = url.PathUnescape(store)
	if c.rest, _ = url.PathUnescape(key); err != nil || !utf8.ValidString(c.rest) {
		return transcript.Response{}, errUnsayable
	}
	writes := c.verb == "POST" || c.verb == "PUT"
	switch {
	case writes && (!hasKey || key == ""):
		return o.save(ctx, c, r.Body, header)
	case writes && key == "bulk":
		return o.bulk(ctx, c, r.Body, header)
	case writes && key == "transaction":
		return o.transact(ctx, c, r.Body, header)
	case c.verb == "GET" && hasKey:
		return o.get(ctx, c, header)
	case c.verb == "DELETE" && hasKey:
		return o.delete(ctx, c, r, header)
	}
	return transcript.Response{}, errUnsayable
}

func (o over) secret(ctx context.Context, rest string, more map[string]string) (transcript.Response, error) {
	store, name, named := strings.Cut(rest, "/")
	store, storeErr := url.PathUnescape(store)
	name, nameErr := url.PathUnescape(name)
	if name == "empty" { // gRPC cannot distinguish a secret without keys from no secret
		return transcript.Response{}, errUnsayable
	}
	if !named || storeErr != nil || nameErr != nil || !utf8.ValidString(store) || !utf8.ValidString(name) {
		return transcript.Response{}, errUnsayable
	}
	var answer any
	if strings.HasSuffix(rest, "/bulk") {
		out, err := o.client.GetBulkSecret(ctx, &runtimev1.GetBulkSecretRequest{StoreName: store, Metadata: more})
		if err != nil {
			return transcript.Response{}, err
		}
		all := map[string]map[string]string{}
		for name, secret := range out.GetData() {
			all[name] = map[string]string{}
			maps.Copy(all[name], secret.GetSecrets())
		}
		answer = all
	} else {
		out, err := o.client.GetSecret(ctx, &runtimev1.GetSecretRequest{StoreName: store, Key: name, Metadata: more})
		if err != nil {
			return transcript.Response{}, err
		}
		if len(out.GetData()) == 0 {
			return nothing(), nil
		}
		answer = out.GetData()
	}
	text, err := json.Marshal(answer)
	return transcript.Response{Status: http.StatusOK, Header: http.Header{}, Body: text}, err
}

func (o over) binding(ctx context.Context, name string, body []byte) (transcript.Response, error) {
	var in struct {
		Operation string            `json:"operation"`
		Data      json.RawMessage   `json:"data"`
		Metadata  map[string]string `json:"metadata"`
	}
	if name == "" || strict(body, &in) != nil {
		return transcript.Response{}, errUnsayable
	}
	if in.Data == nil {
		in.Data = json.RawMessage("null")
	}
	out, err := o.client.InvokeBinding(ctx,
		&runtimev1.InvokeBindingRequest{Name: name, Operation: in.Operation, Data: in.Data, Metadata: in.Metadata})
	if err != nil || len(out.GetData()) == 0 {
		return nothing(), err
	}
	return transcript.Response{Status: http.StatusOK, Header: http.Header{}, Body: out.GetData()}, nil
}

func (o over) get(ctx context.Context, c call, header *metadata.MD) (transcript.Response, error) {
	consistency, ok := consistencies()[c.query.Get("consistency")]
	if !ok {
		return transcript.Response{}, errUnsayable
	}
	out, err := o.client.GetState(ctx, &runtimev1.GetStateRequest{StoreName: c.store, Key: c.rest,
		Consistency: consistency, Metadata: c.more}, grpc.Header(header))
	if err != nil {
		return transcript.Response{}, err
	}
	return value(out.GetData(), out.GetEtag(), out.GetMetadata()), nil
}

func value(data []byte, etag string, more map[string]string) transcript.Response {
	if etag == "" && len(data) == 0 {
		return nothing()
	}
	h := http.Header{}
	if etag != "" {
		h.Set("Etag", etag)
	}
	if at := more["ttlExpireTime"]; at != "" {
		h.Set("Metadata.ttlexpiretime", at)
	}
	return transcript.Response{Status: http.StatusOK, Header: h, Body: data}
}

func nothing() transcript.Response {
	return transcript.Response{Status: http.StatusNoContent, Header: http.Header{}}
}

func (o over) save(ctx context.Context, c call, body []byte, header *metadata.MD) (transcript.Response, error) {
	var in []item
	if strict(body, &in) != nil {
		return transcript.Response{}, errUnsayable
	}
	request := &runtimev1.SaveStateRequest{StoreName: c.store}
	for _, it := range in {
		said, err := it.message(c.more, true)
		if err != nil {
			return transcript.Response{}, err
		}
		request.States = append(request.States, said)
	}
	_, err := o.client.SaveState(ctx, request, grpc.Header(header))
	return nothing(), err
}

func (o over) bulk(ctx context.Context, c call, body []byte, header *metadata.MD) (transcript.Response, error) {
	var in struct {
		Keys        []string          `json:"keys"`
		Parallelism int32             `json:"parallelism"`
		Metadata    map[string]string `json:"metadata"`
	}
	if strict(body, &in) != nil || c.query.Has("consistency") {
		return transcript.Response{}, errUnsayable
	}
	all := maps.Clone(c.more)
	maps.Copy(all, in.Metadata)
	out, err := o.client.GetBulkState(ctx, &runtimev1.GetBulkStateRequest{StoreName: c.store, Keys: in.Keys,
		Parallelism: in.Parallelism, Metadata: all}, grpc.Header(header))
	if err != nil {
		return transcript.Response{}, err
	}
	var b bytes.Buffer
	b.WriteByte('[')
	for i, it := range out.GetItems() {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(bulkItem(it))
	}
	b.WriteByte(']')
	return transcript.Response{Status: http.StatusOK, Header: http.Header{}, Body: b.Bytes()}, nil
}

func bulkItem(it *runtimev1.BulkStateItem) string {
	quoted := func(s string) string { t, _ := json.Marshal(s); return string(t) }
	out := `{"key":` + quoted(it.GetKey())
	more := it.GetMetadata()
	switch {
	case it.GetError() != "":
		out += `,"error":` + quoted(it.GetError())
	case it.GetEtag() != "":
		data := string(it.GetData())
		if more["contentType"] != "" {
			data = quoted(base64.StdEncoding.EncodeToString(it.GetData()))
		}
		out += `,"data":` + data + `,"etag":"` + it.GetEtag() + `"`
		if len(more) > 0 {
			text, _ := json.Marshal(more)
			out += `,"metadata":` + string(text)
		}
	}
	return out + "}"
}

func (o over) delete(ctx context.Context, c call, r transcript.Request, header *metadata.MD) (transcript.Response,
	error) {
	options, ok := optionsOf(c.query.Get("concurrency"), c.query.Get("consistency"))
	if !ok {
		return transcript.Response{}, errUnsayable
	}
	request := &runtimev1.DeleteStateRequest{StoreName: c.store, Key: c.rest, Options: options, Metadata: c.more}
	for _, h := range r.Header {
		if h.Name == "If-Match" {
			request.Etag = &commonv1.Etag{Value: h.Value}
		}
	}
	_, err := o.client.DeleteState(ctx, request, grpc.Header(header))
	return nothing(), err
}

func (o over) transact(ctx context.Context, c call, body []byte, header *metadata.MD) (transcript.Response, error) {
	var in struct {
		Operations []operation       `json:"operations"`
		Metadata   map[string]string `json:"metadata"`
	}
	if strict(body, &in) != nil || in.Operations == nil {
		return transcript.Response{}, errUnsayable
	}
	request := &runtimev1.ExecuteStateTransactionRequest{StoreName: c.store, Metadata: in.Metadata}
	for _, op := range in.Operations {
		said, err := op.Request.message(c.more, op.Operation == "upsert")
		if err != nil {
			return transcript.Response{}, err
		}
		request.Operations = append(request.Operations,
			&runtimev1.TransactionalStateOperation{OperationType: op.Operation, Request: said})
	}
	_, err := o.client.ExecuteStateTransaction(ctx, request, grpc.Header(header))
	return nothing(), err
}

func (o over) sayActor(ctx context.Context, r transcript.Request, rest string,
	header *metadata.MD) (transcript.Response, error) {
	kind, rest, _ := strings.Cut(rest, "/")
	id, rest, _ := strings.Cut(rest, "/")
	kind, kindErr := url.PathUnescape(kind)
	id, idErr := url.PathUnescape(id)
	if kindErr != nil || idErr != nil || !utf8.ValidString(kind) || !utf8.ValidString(id) {
		return transcript.Response{}, errUnsayable
	}
	if key, ok := strings.CutPrefix(rest, "state/"); ok && r.Method == "GET" && !strings.Contains(r.Target, "?") {
		key, err := url.PathUnescape(key)
		if err != nil {
			return transcript.Response{}, errUnsayable
		}
		out, err := o.client.GetActorState(ctx,
			&runtimev1.GetActorStateRequest{ActorType: kind, ActorId: id, Key: key}, grpc.Header(header))
		if err != nil {
			return transcript.Response{}, err
		}
		return value(out.GetData(), "", out.GetMetadata()), nil
	}
	var in []operation
	if strings.TrimSuffix(rest, "/") != "state" || r.Method != "POST" && r.Method != "PUT" ||
		strict(r.Body, &in) != nil {
		return transcript.Response{}, errUnsayable
	}
	request := &runtimev1.ExecuteActorStateTransactionRequest{ActorType: kind, ActorId: id}
	for _, op := range in {
		said, err := op.Request.message(nil, op.Operation == "upsert")
		if err != nil || op.Request.ETag != "" {
			return transcript.Response{}, errUnsayable
		}
		request.Operations = append(request.Operations, &runtimev1.TransactionalActorStateOperation{
			OperationType: op.Operation, Key: said.GetKey(), Value: &anypb.Any{Value: said.GetValue()},
			Metadata: said.GetMetadata(),
		})
	}
	_, err := o.client.ExecuteActorStateTransaction(ctx, request, grpc.Header(header))
	return nothing(), err
}

// item and operation are the bodies of HTTP requests.
type item struct {
	Key      string            `json:"key"`
	Value    json.RawMessage   `json:"value"`
	ETag     string            `json:"etag"`
	Metadata map[string]string `json:"metadata"`
	Options  struct {
		Concurrency string `json:"concurrency"`
		Consistency string `json:"consistency"`
	} `json:"options"`
}

type operation struct {
	Operation string `json:"operation"`
	Request   item   `json:"request"`
}

// message returns an item as a gRPC message. extra is added to the metadata of the item. gRPC values are bytes, so
// values that are not JSON need no base64.
func (it item) message(extra map[string]string, needsValue bool) (*commonv1.StateItem, error) {
	options, ok := optionsOf(it.Options.Concurrency, it.Options.Consistency)
	if !ok || needsValue && it.Value == nil {
		return nil, errUnsayable
	}
	out := &commonv1.StateItem{Key: it.Key, Value: it.Value, Options: options, Metadata: map[string]string{}}
	maps.Copy(out.Metadata, it.Metadata)
	maps.Copy(out.Metadata, extra)
	if it.ETag != "" {
		out.Etag = &commonv1.Etag{Value: it.ETag}
	}
	for name, kind := range out.Metadata {
		if !strings.EqualFold(name, "contentType") || kind != "application/octet-stream" {
			continue
		}
		var text string
		if json.Unmarshal(it.Value, &text) != nil {
			return nil, errUnsayable
		}
		bytes, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, errUnsayable
		}
		out.Value = bytes
	}
	return out, nil
}

func consistencies() map[string]commonv1.StateOptions_StateConsistency {
	return map[string]commonv1.StateOptions_StateConsistency{
		"": commonv1.StateOptions_CONSISTENCY_UNSPECIFIED, "eventual": commonv1.StateOptions_CONSISTENCY_EVENTUAL,
		"strong": commonv1.StateOptions_CONSISTENCY_STRONG,
	}
}

func optionsOf(concurrency, consistency string) (*commonv1.StateOptions, bool) {
	modes := map[string]commonv1.StateOptions_StateConcurrency{
		"":            commonv1.StateOptions_CONCURRENCY_UNSPECIFIED,
		"first-write": commonv1.StateOptions_CONCURRENCY_FIRST_WRITE,
		"last-write":  commonv1.StateOptions_CONCURRENCY_LAST_WRITE,
	}
	mode, ok := modes[concurrency]
	level, known := consistencies()[consistency]
	return &commonv1.StateOptions{Concurrency: mode, Consistency: level}, ok && known
}

// strict decodes JSON like json.Unmarshal.
func strict(body []byte, into any) error { return json.Unmarshal(body, into) }
