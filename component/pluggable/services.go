package pluggable

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	reflection "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/internal/fault"
)

const (
	maxServices   = 1000    // largest number of services of one process
	maxReflection = 1 << 20 // largest list of services, in bytes
	listTime      = 5 * time.Second
)

// services returns the names of the gRPC services of a process. It reads them with gRPC reflection. It tries version
// v1alpha first, because all component SDKs support it, and then v1. Both versions use the same messages.
func services(ctx context.Context, conn grpc.ClientConnInterface) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	names, err := reflect(ctx, conn, "grpc.reflection.v1alpha.ServerReflection")
	if status.Code(err) == codes.Unimplemented {
		names, err = reflect(ctx, conn, "grpc.reflection.v1.ServerReflection")
	}
	if status.Code(err) == codes.Unimplemented {
		return nil, &fault.Error{Code: fault.Invalid, Op: "pluggable.Services",
			Msg:  "the process has no gRPC reflection, so that its services are unknown",
			Hint: "register the reflection service in its gRPC server"}
	}
	return names, err
}

// reflect returns the sorted names of the gRPC services of a process. The parameter service is the name of the
// reflection service to call.
func reflect(ctx context.Context, conn grpc.ClientConnInterface, service string) ([]string, error) {
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
		"/"+service+"/ServerReflectionInfo", grpc.MaxCallRecvMsgSize(maxReflection))
	if err != nil {
		return nil, err
	}
	ask := &reflection.ServerReflectionRequest{
		MessageRequest: &reflection.ServerReflectionRequest_ListServices{ListServices: "*"}}
	answer := &reflection.ServerReflectionResponse{}
	// An error of SendMsg is io.EOF. RecvMsg has the status.
	_ = stream.SendMsg(ask)
	_ = stream.CloseSend()
	if err := stream.RecvMsg(answer); err != nil {
		return nil, err
	}
	if refused := answer.GetErrorResponse(); refused != nil {
		return nil, status.Error(codes.Code(refused.GetErrorCode()), refused.GetErrorMessage())
	}
	listed := answer.GetListServicesResponse().GetService()
	if len(listed) > maxServices {
		return nil, &fault.Error{Code: fault.TooLarge, Op: "pluggable.Services",
			Msg: fmt.Sprintf("the process has more than %d services", maxServices)}
	}
	names := make([]string, len(listed))
	for i, s := range listed {
		names[i] = s.GetName()
	}
	slices.Sort(names)
	return names, nil
}
