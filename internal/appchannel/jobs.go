package appchannel

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	common "github.com/dapr/dapr/pkg/proto/common/v1"
	runtime "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/quorate/quorate/internal/fault"
)

// Headers of a request that delivers a tick of a job. A tick is one time at which the job is due. headerJobTick
// identifies the tick, and is the same in every attempt to deliver it.
const (
	headerJobTick    = "Quorate-Job-Tick"
	headerJobAttempt = "Quorate-Job-Attempt"
)

// JobEvent is a tick of a job: one time at which the job is due.
type JobEvent struct {
	Name    string
	Data    *anypb.Any
	Body    []byte // the data in the form that an HTTP application gets
	Tick    string // identifies the tick
	Attempt uint64 // 1 = the first attempt
}

// TakeJob delivers a tick of a job to the application. An HTTP application gets POST /job/{name}, and a gRPC
// application gets a call of OnJobEvent. Results:
//
//   - If the application has handled the tick, known is true and err is nil.
//   - If the application does not know the job, known is false and err is nil.
//   - If the application reports a failure, known is true and err is fault.Internal.
//   - If the application does not answer, known is true and err is an error of RoundTrip.
func (c *Channel) TakeJob(ctx context.Context, e *JobEvent) (known bool, err error) {
	if g, ok := c.carry.(*grpcCarrier); ok {
		return g.takeJob(ctx, e)
	}
	r := eventRequest(ctx, http.MethodPost, "/job/"+e.Name, e.Body)
	r.URL = &url.URL{Path: "/job/" + e.Name, RawPath: "/job/" + url.PathEscape(e.Name)}
	r.Header[headerJobTick] = []string{e.Tick}
	r.Header[headerJobAttempt] = []string{strconv.FormatUint(e.Attempt, 10)}
	answer, err := c.RoundTrip(r)
	if err != nil {
		return true, err
	}
	defer finish(answer.Body)
	switch {
	case handled(answer.StatusCode):
		return true, nil
	case answer.StatusCode == http.StatusNotFound:
		return false, nil
	}
	return true, &fault.Error{Code: fault.Internal, Op: "appchannel.TakeJob", Err: &refusal{answer,
		fmt.Sprintf("POST /job/%s answered %d", e.Name, answer.StatusCode)}}
}

func (g *grpcCarrier) takeJob(ctx context.Context, e *JobEvent) (known bool, err error) {
	in := &runtime.JobEventRequest{Name: e.Name, Data: e.Data, Method: "job/" + e.Name,
		ContentType: e.Data.GetTypeUrl(), HttpExtension: &common.HTTPExtension{Verb: common.HTTPExtension_POST}}
	ctx = metadata.AppendToOutgoingContext(ctx, strings.ToLower(headerJobTick), e.Tick,
		strings.ToLower(headerJobAttempt), strconv.FormatUint(e.Attempt, 10))
	err = g.call(ctx, func(ctx context.Context, o ...grpc.CallOption) error {
		_, err := g.app.OnJobEvent(ctx, in, o...)
		return err
	})
	if status.Code(err) == codes.Unimplemented {
		err = g.call(ctx, func(ctx context.Context, o ...grpc.CallOption) error {
			//lint:ignore SA1019 applications made with older SDKs, and those made with the Go SDK, serve only this name
			_, err := runtime.NewAppCallbackAlphaClient(g.conns).OnJobEventAlpha1(ctx, in, o...)
			return err
		})
	}
	switch {
	case err == nil:
		return true, nil
	case status.Code(err) == codes.NotFound:
		if _, ours := fault.As(err); !ours {
			return false, nil
		}
	}
	return true, answered(err, func(s *status.Status) error {
		header := http.Header{"Grpc-Status": {strconv.Itoa(int(s.Code()))}}
		return &fault.Error{Code: fault.Internal, Op: "appchannel.TakeJob", Err: &refusal{
			&http.Response{Status: s.Code().String(), StatusCode: http.StatusInternalServerError, Header: header},
			"OnJobEvent answered " + s.Code().String() + ": " + s.Message()}}
	})
}

// refusal is the error for a job or message that the application failed to handle. It contains the application's
// answer. For a gRPC application, the header Grpc-Status of this answer has the status code.
type refusal struct {
	answer *http.Response
	text   string
}

func (r *refusal) Error() string { return r.text }

// AnswerOf returns the application's answer from an error of TakeJob, TakeMessage or TakeBatch. It returns nil if the
// error has another cause than a failure status in the answer. The body of the answer cannot be read.
func AnswerOf(err error) *http.Response {
	var r *refusal
	if errors.As(err, &r) {
		return r.answer
	}
	return nil
}
