// Package pluggable uses components that run in separate processes. It calls them with the protocol of Dapr's pluggable
// components (dapr.proto.components.v1). Such a component serves gRPC on a Unix socket. The name of the socket
// determines the component type: redis-like.sock serves state.redis-like.
//
// The package finds the sockets, manages the connections, and checks the responses. It does not trust the responses,
// because an unexpected process may own the socket. It knows nothing about component files.
//
// To support another building block, add a file with its gRPC service, its Init and its calls. secrets.go is the
// smallest example.
//
// There are goroutines for each gRPC connection, each attempt to connect, each stream of an input or a subscription,
// and each event in progress. Close ends all of them.
package pluggable

import (
	"log/slog"
	"strings"

	components "github.com/dapr/dapr/pkg/proto/components/v1"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/state"
)

// DefaultFolder is the folder of the sockets in Dapr.
const DefaultFolder = "/tmp/dapr-components-sockets"

// Fields declares the metadata. A pluggable component accepts every name.
func Fields() []component.Field { return []component.Field{{Rest: true}} }

// Options are the settings of one component. All fields except BuiltIn are required.
type Options struct {
	Folder     string // folder of the sockets
	Name       string // component name; the process distinguishes its components by this name
	Type       string // such as state.redis-like
	Metadata   component.Values
	MaxMessage int64    // largest data in an answer or in a published message, in bytes
	BuiltIn    []string // component types that need no process, for suggestions
	Logger     *slog.Logger
}

// socket returns the name of the socket without its extension.
func (o *Options) socket() string {
	_, name, _ := strings.Cut(o.Type, ".")
	return name
}

// properties returns the metadata for Init. The keys that encrypt values are left out, because the node itself encrypts
// the values.
func (l *link) properties() *components.MetadataRequest {
	out := &components.MetadataRequest{Properties: map[string]string{}}
	for name, value := range l.options.Metadata.Properties() {
		if !strings.EqualFold(name, state.MetadataPrimaryKey) && !strings.EqualFold(name, state.MetadataSecondaryKey) {
			out.Properties[name] = value
		}
	}
	return out
}
