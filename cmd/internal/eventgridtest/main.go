// Command eventgridtest is Azure Event Grid on loopback, as a process of its own, for tests
// of the whole program and for trying the binding without a cloud.
//
//	go run ./cmd/internal/eventgridtest -node 127.0.0.1:9000 -dir /tmp/grid
//
// It prints, and writes to component.yaml in the folder, a component that uses it; ca.pem
// beside it is the authority to trust: start the node with SSL_CERT_FILE set to it. What the
// service was asked is at /control/requests; a POST to /control/deliver sends events. It
// ends with an interrupt.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/quorate/quorate/component/bindings/azure/eventgrid/eventgridtest"
)

func main() {
	node := flag.String("node", "127.0.0.1:9000", "where the binding listens: host and handshakePort")
	dir := flag.String("dir", ".", "folder to write component.yaml and ca.pem to")
	flag.Parse()
	if err := run(*node, *dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(node, dir string) error {
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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
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
