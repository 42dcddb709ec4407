package grpc

import (
	"context"
	"net/http"
	"strconv"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"golang.org/x/net/http/httpguts"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
	"github.com/quorate/quorate/component/state"
)

// actorMethods serves actors: their state, calls of their methods, their reminders and timers, and the stream of the
// application that hosts them.
type actorMethods struct {
	*core
	state    *api.State
	actors   *actors.Service
	metadata *api.Metadata // describes the connection to the application
}

// GetActorState reads one key of an actor. If the key does not exist, the answer is empty.
func (s *actorMethods) GetActorState(ctx context.Context,
	in *runtimev1.GetActorStateRequest) (*runtimev1.GetActorStateResponse, error) {
	options := api.ReadOptions{Session: first(ctx, keySession)}
	item, err := s.held(ctx, &options, func() (state.Item, error) {
		return s.state.ActorGet(ctx, api.ActorGetRequest{
			Actor: api.Actor{Type: in.GetActorType(), ID: in.GetActorId()}, Key: in.GetKey(), ReadOptions: options,
		})
	})
	if err != nil {
		return nil, err
	}
	prove(ctx, &item.Proof)
	return &runtimev1.GetActorStateResponse{Data: item.Value, Metadata: itemMetadata(&item)}, nil
}

// ExecuteActorStateTransaction applies operations to the state of one actor atomically.
func (s *actorMethods) ExecuteActorStateTransaction(ctx context.Context,
	in *runtimev1.ExecuteActorStateTransactionRequest) (*emptypb.Empty, error) {
	operations := make([]api.Operation, len(in.GetOperations()))
	for i, o := range in.GetOperations() {
		operations[i] = api.Operation{Name: o.GetOperationType(), Item: api.Item{
			Key: o.GetKey(), Value: present(o.GetValue().GetValue()), Metadata: o.GetMetadata(),
		}}
	}
	written, err := s.state.ActorTransact(ctx, api.ActorTransactRequest{
		Actor: api.Actor{Type: in.GetActorType(), ID: in.GetActorId()}, Operations: operations,
		WriteOptions: writeOptions(ctx),
	})
	return empty(ctx, &written, err)
}

// InvokeActor calls a method of an actor. The metadata of the request become the headers of the call.
func (s *actorMethods) InvokeActor(ctx context.Context,
	in *runtimev1.InvokeActorRequest) (*runtimev1.InvokeActorResponse, error) {
	if err := s.state.CheckActors(); err != nil {
		return nil, err
	}
	header := http.Header{}
	for name, value := range in.GetMetadata() {
		if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return nil, api.MalformedRequest("the metadata " + strconv.Quote(api.Shorten(name)) + " cannot be a header")
		}
		header.Set(name, value)
	}
	method, err := actors.CleanMethod(in.GetMethod())
	if err != nil {
		return nil, err
	}
	answer, err := s.actors.Do(ctx, &actors.Call{Actor: api.Actor{Type: in.GetActorType(), ID: in.GetActorId()},
		Method: method, Verb: http.MethodPut, Header: header, Body: in.GetData()})
	if err != nil {
		return nil, err
	}
	return &runtimev1.InvokeActorResponse{Data: answer.Body}, nil
}
