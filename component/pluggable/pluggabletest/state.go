package pluggabletest

import (
	"context"
	"strconv"
	"time"

	components "github.com/dapr/dapr/pkg/proto/components/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// State serves a state store.
type State struct {
	components.UnimplementedStateStoreServer
	components.UnimplementedTransactionalStateStoreServer
	components.UnimplementedTransactionalStoreMultiMaxSizeServer

	// Store keeps the data. It must be a state.Transactor and a state.BulkGetter.
	Store   state.Store
	Offers  []string // features that the process reports
	NoBulk  bool     // answers bulk calls with Unimplemented
	NoETags bool     // answers have no ETags
	Most    int64    // largest number of operations in a transaction; 0 = no limit
	// Before is called before each call, with the name of the method; nil = nothing.
	Before func(ctx context.Context, method string) error
	// AnswerGet and AnswerBulk replace the answers of Get and BulkGet; nil = Store answers.
	AnswerGet  func(*components.GetRequest) *components.GetResponse
	AnswerBulk func(*components.BulkGetRequest) *components.BulkGetResponse
	SeenSet    func(*components.SetRequest) // is called with each request of Set; nil = nothing

	instances *Instances
}

// Register registers the state store with the server. To add s to a Process, use s.Register as a Service.
func (s *State) Register(server *grpc.Server, i *Instances) {
	if s.instances != i { // calls of an earlier incarnation may still read it
		s.instances = i
	}
	components.RegisterStateStoreServer(server, s)
	components.RegisterTransactionalStateStoreServer(server, s)
	components.RegisterTransactionalStoreMultiMaxSizeServer(server, s)
}

func (s *State) before(ctx context.Context, method string) error {
	if s.Before != nil {
		if err := s.Before(ctx, method); err != nil {
			return err
		}
	}
	return s.instances.Check(ctx)
}

// Init implements components.StateStoreServer.
func (s *State) Init(ctx context.Context, r *components.InitRequest) (*components.InitResponse, error) {
	if s.Before != nil {
		if err := s.Before(ctx, "Init"); err != nil {
			return nil, err
		}
	}
	return &components.InitResponse{}, s.instances.Init(ctx, r.GetMetadata().GetProperties())
}

// Features implements components.StateStoreServer.
func (s *State) Features(ctx context.Context, _ *components.FeaturesRequest) (*components.FeaturesResponse, error) {
	return &components.FeaturesResponse{Features: s.Offers}, s.before(ctx, "Features")
}

// Ping implements components.StateStoreServer.
func (s *State) Ping(ctx context.Context, _ *components.PingRequest) (*components.PingResponse, error) {
	return &components.PingResponse{}, s.before(ctx, "Ping")
}

// MultiMaxSize implements components.TransactionalStoreMultiMaxSizeServer.
func (s *State) MultiMaxSize(ctx context.Context, _ *components.MultiMaxSizeRequest) (*components.MultiMaxSizeResponse,
	error) {
	return &components.MultiMaxSizeResponse{MaxSize: s.Most}, s.before(ctx, "MultiMaxSize")
}

// Get implements components.StateStoreServer.
func (s *State) Get(ctx context.Context, r *components.GetRequest) (*components.GetResponse, error) {
	if err := s.before(ctx, "Get"); err != nil {
		return nil, err
	}
	if s.AnswerGet != nil {
		return s.AnswerGet(r), nil
	}
	item, err := s.Store.Get(ctx, state.GetRequest{Key: r.GetKey()})
	if err != nil {
		return nil, failed(err)
	}
	i := s.item(item)
	return &components.GetResponse{Data: i.GetData(), Etag: i.GetEtag(), Metadata: i.GetMetadata(),
		ContentType: i.GetContentType()}, nil
}

// BulkGet implements components.StateStoreServer. It returns the items in reverse order, because several components of
// Dapr do not keep the order of the request either.
func (s *State) BulkGet(ctx context.Context, r *components.BulkGetRequest) (*components.BulkGetResponse, error) {
	if err := s.before(ctx, "BulkGet"); err != nil {
		return nil, err
	}
	if s.NoBulk {
		return nil, status.Error(codes.Unimplemented, "no bulk reads")
	}
	if s.AnswerBulk != nil {
		return s.AnswerBulk(r), nil
	}
	request := state.BulkGetRequest{}
	for _, i := range r.GetItems() {
		request.Keys = append(request.Keys, i.GetKey())
	}
	items, err := s.Store.(state.BulkGetter).BulkGet(ctx, request)
	if err != nil {
		return nil, failed(err)
	}
	out := &components.BulkGetResponse{}
	for n := range items {
		out.Items = append(out.Items, s.item(items[len(items)-1-n]))
	}
	return out, nil
}

func (s *State) item(i state.Item) *components.BulkStateItem {
	out := &components.BulkStateItem{Key: i.Key, Data: i.Value, ContentType: i.ContentType}
	if i.Found() && !s.NoETags {
		out.Etag = &components.Etag{Value: i.ETag}
	}
	if !i.Expires.IsZero() {
		out.Metadata = map[string]string{"ttlExpireTime": i.Expires.Format(time.RFC3339Nano)}
	}
	return out
}

// Set implements components.StateStoreServer.
func (s *State) Set(ctx context.Context, r *components.SetRequest) (*components.SetResponse, error) {
	if err := s.before(ctx, "Set"); err != nil {
		return nil, err
	}
	if s.SeenSet != nil {
		s.SeenSet(r)
	}
	w, err := write(r)
	if err == nil {
		_, err = s.Store.Set(ctx, state.SetRequest{Items: []state.Write{w}})
	}
	return &components.SetResponse{}, failed(err)
}

// BulkSet implements components.StateStoreServer. It writes the items one by one, from the last to the first.
func (s *State) BulkSet(ctx context.Context, r *components.BulkSetRequest) (*components.BulkSetResponse, error) {
	if err := s.before(ctx, "BulkSet"); err != nil {
		return nil, err
	}
	if s.NoBulk {
		return nil, status.Error(codes.Unimplemented, "no bulk writes")
	}
	for i := range r.GetItems() {
		w, err := write(r.GetItems()[len(r.GetItems())-1-i])
		if err == nil {
			_, err = s.Store.Set(ctx, state.SetRequest{Items: []state.Write{w}})
		}
		if err != nil {
			return nil, failed(err)
		}
	}
	return &components.BulkSetResponse{}, nil
}

// Delete implements components.StateStoreServer.
func (s *State) Delete(ctx context.Context, r *components.DeleteRequest) (*components.DeleteResponse, error) {
	if err := s.before(ctx, "Delete"); err != nil {
		return nil, err
	}
	_, err := s.Store.Delete(ctx, state.DeleteRequest{Key: r.GetKey(), ETag: effective(r.GetEtag(), r.GetOptions())})
	return &components.DeleteResponse{}, failed(err)
}

// Transact implements components.TransactionalStateStoreServer.
func (s *State) Transact(ctx context.Context, r *components.TransactionalStateRequest) (
	*components.TransactionalStateResponse, error) {
	if err := s.before(ctx, "Transact"); err != nil {
		return nil, err
	}
	if s.Most > 0 && int64(len(r.GetOperations())) > s.Most {
		return nil, status.Error(codes.InvalidArgument, "too many operations")
	}
	request := state.TransactRequest{}
	for _, o := range r.GetOperations() {
		op := state.Operation{}
		if d := o.GetDelete(); d != nil {
			op.Kind = state.Remove
			op.Write = state.Write{Key: d.GetKey(), ETag: effective(d.GetEtag(), d.GetOptions())}
		} else {
			w, err := write(o.GetSet())
			if err != nil {
				return nil, err
			}
			op.Write = w
		}
		request.Operations = append(request.Operations, op)
	}
	_, err := s.Store.(state.Transactor).Transact(ctx, request)
	return &components.TransactionalStateResponse{}, failed(err)
}

// effective returns the ETag that the stored item must have for a request to succeed, or "" if the request sets no such
// condition. Like Dapr's Redis component, it ignores the ETag of a request with last-write concurrency.
func effective(e *components.Etag, o *components.StateOptions) string {
	if o.GetConcurrency() == components.StateOptions_CONCURRENCY_LAST_WRITE {
		return ""
	}
	return e.GetValue()
}

func write(r *components.SetRequest) (state.Write, error) {
	w := state.Write{Key: r.GetKey(), Value: r.GetValue(), ContentType: r.GetContentType(),
		ETag: effective(r.GetEtag(), r.GetOptions())}
	if r.GetOptions().GetConcurrency() == components.StateOptions_CONCURRENCY_FIRST_WRITE {
		w.Concurrency = state.FirstWrite
	}
	if text, ok := r.GetMetadata()["ttlInSeconds"]; ok {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return w, status.Error(codes.InvalidArgument, "ttlInSeconds is not a number")
		}
		w.TTL = state.TTL{Set: true, Seconds: seconds}
	}
	return w, nil
}

// failed converts an error of the store to a gRPC status. If a condition was not met, it returns the status that Dapr
// documents for a wrong ETag.
func failed(err error) error {
	code := codes.Unknown
	switch fault.CodeOf(err) {
	case "":
		return nil
	case fault.Conflict:
		return ETagError(codes.FailedPrecondition)
	case fault.Timeout:
		code = codes.DeadlineExceeded
	case fault.Unavailable:
		code = codes.Unavailable
	case fault.Invalid:
		code = codes.InvalidArgument
	}
	return status.Error(code, fault.Text(err))
}

// ETagError returns the error of a write with a wrong ETag, with the given code.
func ETagError(code codes.Code) error {
	s, err := status.New(code, "possible etag mismatch").WithDetails(&errdetails.BadRequest{
		FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "etag", Description: "mismatch"}}})
	if err != nil {
		return err
	}
	return s.Err()
}
