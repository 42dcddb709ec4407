package grpc

import (
	"cmp"
	"strings"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
)

// code returns the gRPC code for an error. Unavailable and DeadlineExceeded mean that the operation was not executed,
// so clients may retry it. Unknown means that it may have been executed.
func code(e *api.Error) codes.Code {
	switch e.Kind {
	case api.Malformed:
		if e.Code == api.CodeOperationUnknown { // as in Dapr
			return codes.Unimplemented
		}
		return codes.InvalidArgument
	case api.Missing:
		if e.Code == api.CodeStoreNotConfigured || e.Code == api.CodePubSubNotConfigured {
			return codes.FailedPrecondition
		}
		return codes.InvalidArgument
	case api.NotConfigured, api.LockLost:
		return codes.FailedPrecondition
	case api.NotFound:
		switch e.Code { // as in Dapr
		case api.CodePubSubNotFound, api.CodePubSubEmpty, api.CodeTopicNameEmpty:
			return codes.InvalidArgument
		}
		return codes.NotFound
	case api.Method, api.Unsupported, api.NotServed:
		return codes.Unimplemented
	case api.Conflict, api.ActorMoved:
		return codes.Aborted
	case api.Exists:
		return codes.AlreadyExists
	case api.Denied:
		return codes.PermissionDenied
	case api.Unauthenticated:
		return codes.Unauthenticated
	case api.Compacted:
		return codes.OutOfRange
	case api.Unavailable, api.NotReady:
		return codes.Unavailable
	case api.Timeout:
		return codes.DeadlineExceeded
	case api.Indeterminate, api.BadAnswer:
		return codes.Unknown
	default:
		switch e.Code { // as in Dapr
		case api.CodeConfigurationSubscribe, api.CodeCloudEventCreation:
			return codes.InvalidArgument
		case api.CodeActorStackDepth:
			return codes.ResourceExhausted
		}
		return codes.Internal
	}
}

// maxMessage bounds the message of a status, in bytes. The message travels in headers, whose size clients limit.
const maxMessage = 2 << 10

// statusOf returns the gRPC status of a failure. The message begins with the same words as in Dapr. It is shortened,
// because it may contain the answer of an application. The details contain the error code that the HTTP API would
// return.
func statusOf(method string, e *api.Error) error {
	c := code(e)
	if transactional(method) && failedInStore(c) && e.Code != api.CodeOverloaded {
		c = codes.Internal // clients of transactions expect this code for every store error
	}
	st := status.New(c, messageOf(e))
	rich, err := st.WithDetails(details(e)...)
	if err != nil { // cannot happen: these messages always marshal
		return st.Err()
	}
	return rich.Err()
}

func messageOf(e *api.Error) string {
	return fault.Shorten(strings.ToValidUTF8(e.Message, "\uFFFD"), maxMessage)
}

func transactional(method string) bool {
	return method == runtimev1.Dapr_ExecuteStateTransaction_FullMethodName ||
		method == runtimev1.Dapr_ExecuteActorStateTransaction_FullMethodName
}

func failedInStore(c codes.Code) bool {
	return c == codes.Unavailable || c == codes.DeadlineExceeded || c == codes.Unknown
}

// Metadata of ErrorInfo.
const (
	infoCode   = "errorCode" // the error code, if the reason of ErrorInfo is one that Dapr defines
	infoReason = "reason"    // the reason of api.Details, if Dapr defines none
)

// details returns the details of an error. The reason in ErrorInfo is the code of the error, unless Dapr defines a
// reason for it.
func details(e *api.Error) []protoadapt.MessageV1 {
	d := &e.Details
	info := &errdetails.ErrorInfo{Reason: e.Code, Domain: api.DomainOf(e.Code), Metadata: map[string]string{}}
	for _, a := range d.Metadata {
		info.Metadata[a.Name] = a.Value
	}
	switch {
	case d.Domain() == api.DomainDapr:
		info.Reason, info.Domain, info.Metadata[infoCode] = d.Reason, d.Domain(), e.Code
	case d.Reason != "":
		info.Metadata[infoReason] = d.Reason
	}
	out := []protoadapt.MessageV1{info}
	if d.Store != "" {
		resource := &errdetails.ResourceInfo{ResourceType: cmp.Or(d.Resource, "state"), ResourceName: d.Store}
		if d.Resource != "" {
			resource.Description = messageOf(e)
		}
		out = append(out, resource)
	}
	if len(d.Violations) > 0 {
		bad := &errdetails.BadRequest{}
		for _, v := range d.Violations {
			bad.FieldViolations = append(bad.FieldViolations,
				&errdetails.BadRequest_FieldViolation{Field: v.Field, Description: v.Description})
		}
		out = append(out, bad)
	}
	return out
}
