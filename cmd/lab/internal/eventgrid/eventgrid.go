// Package eventgrid serves an imitation of Azure Event Grid on loopback, so that the Event Grid binding can be tried
// without a cloud.
//
//	go run ./cmd/lab event-grid -node 127.0.0.1:9000 -dir /tmp/grid
//
// The command writes two files to the folder in the flag -dir, and prints the first one:
//
//   - component.yaml is a component file that uses this service.
//   - ca.pem is the certificate of the service's certificate authority. The node must run with SSL_CERT_FILE set to the
//     path of this file.
//
// GET /control/requests lists the requests that the service received. POST /control/deliver sends events to the node.
// The process ends on an interrupt.
//
// The package owns the files that it writes. Package eventgridtest implements the service and owns its goroutines.
package eventgrid

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/quorate/quorate/component/bindings/azure/eventgrid/eventgridtest"
)

// Command declares the flags of the subcommand, and returns a function that serves until its context ends.
func Command(f *flag.FlagSet) func(context.Context) error {
	node := f.String("node", "127.0.0.1:9000", "address of the binding: host and handshakePort")
	dir := f.String("dir", ".", "folder for component.yaml and ca.pem")
	return func(ctx context.Context) error { return run(ctx, *node, *dir) }
}

func run(ctx context.Context, node, dir string) error {
	_, port, err := net.SplitHostPort(node)
	if err != nil {
		return err
	}
	f, err := eventgridtest.New(eventgridtest.Config{Polls: 1})
	if err != nil {
		return err
	}
	defer f.Close()
	f.Lead(node)
	if err := os.WriteFile(filepath.Join(dir, "ca.pem"), f.Authority(), 0o600); err != nil {
		return err
	}
	text := component(f, port)
	if err := os.WriteFile(filepath.Join(dir, "component.yaml"), []byte(text), 0o600); err != nil {
		return err
	}
	fmt.Printf("# control: %s/control/ subscriber endpoint: %s/api/events\n%s", f.URL, f.Ingress, text)
	<-ctx.Done()
	return nil
}

func component(f *eventgridtest.Fake, port string) string {
	return fmt.Sprintf(`apiVersion: quorate.dev/v1alpha1
kind: Component
metadata:
  name: orders
spec:
  type: bindings.azure.eventgrid
  version: v1
  metadata:
  - {name: tenantId, value: %q}
  - {name: subscriptionId, value: "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"}
  - {name: clientId, value: %q}
  - {name: clientSecret, value: %q}
  - {name: subscriberEndpoint, value: "%s/api/events"}
  - {name: handshakePort, value: %q}
  - {name: listenHost, value: "127.0.0.1"}
  - {name: scope, value: "/subscriptions/aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee/resourceGroups/shop/providers/Microsoft.EventGrid/topics/orders"}
  - {name: pollInterval, value: 100ms}
  - {name: accessKey, value: %q}
  - {name: topicEndpoint, value: %q}
  - {name: azureAuthorityHost, value: %q}
  - {name: azureResourceManagerEndpoint, value: %q}
`, f.Tenant, f.Client, f.Secret, f.Ingress, port, f.AccessKey, f.Topic, f.URL, f.URL)
}
