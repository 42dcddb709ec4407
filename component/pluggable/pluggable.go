// Package pluggable uses components that run in processes of their own, over the protocol of Dapr's pluggable
// components (dapr.proto.components.v1). Such a component serves gRPC on a Unix socket in a folder. The name of the
// socket, without its extension, is the second part of the component type: redis-like.sock serves state.redis-like.
//
// It owns the search for sockets, the connections, and the checks of answers. It never trusts an answer, because an
// unexpected process may own the socket. It knows nothing about component files, except that a pluggable component
// accepts metadata of any name.
//
// To add a building block, add a file with its service, its Init and its calls; see secrets.go, the smallest one.
//
// Each open component has the goroutines of a gRPC connection, and another goroutine while it connects. A started
// input has one goroutine for its stream, and one for each event in progress. A subscription has one for its
// stream. Close ends these goroutines.
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

// properties returns the metadata for Init. The keys that encrypt values stay in the node.
func (l *link) properties() *components.MetadataRequest {
	out := &components.MetadataRequest{Properties: map[string]string{}}
	for name, value := range l.options.Metadata.Properties() {
		if !strings.EqualFold(name, state.MetadataPrimaryKey) && !strings.EqualFold(name, state.MetadataSecondaryKey) {
			out.Properties[name] = value
		}
	}
	return out
}
