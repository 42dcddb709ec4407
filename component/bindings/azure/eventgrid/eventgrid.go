// Package eventgrid implements the binding bindings.azure.eventgrid. As an output, it publishes events to a topic of
// Azure Event Grid. As an input, it creates an event subscription and receives the events of this subscription.
//
// The package owns the management of the subscription, the validation handshake, the authentication of deliveries, and
// the encoding of events. An input reports success to Event Grid only after the application has handled the event. So
// an event may be delivered more than once. The HTTP server of an input has one goroutine for each connection; Close
// ends these goroutines.
package eventgrid

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/internal/entra"
	"github.com/quorate/quorate/internal/rest"
)

// Type is the component type.
const Type = "bindings.azure.eventgrid"

// The metadata names.
const (
	metadataTenant              = "azureTenantId"
	metadataSubscription        = "azureSubscriptionId"
	metadataClient              = "azureClientId"
	metadataClientSecret        = "azureClientSecret"
	metadataCertificate         = "azureCertificate"
	metadataCertificateFile     = "azureCertificateFile"
	metadataCertificatePassword = "azureCertificatePassword"
	metadataEndpoint            = "subscriberEndpoint"
	metadataPort                = "handshakePort"
	metadataHost                = "listenHost"
	metadataScope               = "scope"
	metadataName                = "eventSubscriptionName"
	metadataAuth                = "deliveryAuth"
	metadataPoll                = "pollInterval"
	metadataAccessKey           = "accessKey"
	metadataTopic               = "topicEndpoint"
	metadataEnvironment         = "azureEnvironment"
	metadataAuthority           = "azureAuthorityHost"
	metadataManager             = "azureResourceManagerEndpoint"
	metadataManagerAudience     = "azureResourceManagerAudience"
)

// The values of deliveryAuth.
const (
	authEntra = "entra"
	authNone  = "none"
)

// Fields returns the metadata fields in addition to those of every binding.
func Fields() []component.Field {
	return []component.Field{
		{Name: metadataTenant, Aliases: []string{"tenantId", "spnTenantId"}, Check: checkIdentifier},
		{Name: metadataSubscription, Aliases: []string{"subscriptionId"}, Check: checkIdentifier},
		{Name: metadataClient, Aliases: []string{"clientId", "spnClientId"}, Check: checkIdentifier},
		{Name: metadataClientSecret, Aliases: []string{"clientSecret", "spnClientSecret"}, Secret: true},
		{Name: metadataCertificate, Aliases: []string{"spnCertificate"}, Secret: true},
		{Name: metadataCertificateFile, Aliases: []string{"spnCertificateFile"}},
		{Name: metadataCertificatePassword, Aliases: []string{"spnCertificatePassword"}, Secret: true},
		{Name: metadataEndpoint, Check: func(text string) error { _, err := parseEndpoint(text); return err }},
		{Name: metadataPort, Quoted: true, Check: func(text string) error { _, err := parsePort(text); return err }},
		{Name: metadataHost},
		{Name: metadataScope, Check: func(text string) error { _, err := parseScope(text); return err }},
		{Name: metadataName, Check: checkName},
		{Name: metadataAuth, Default: authEntra, Security: true, Check: checkAuth},
		{Name: metadataPoll, Kind: component.Duration, Default: "10s", Check: checkPoll},
		{Name: metadataAccessKey, Secret: true, Check: checkKey},
		{Name: metadataTopic, Check: func(text string) error { _, err := parseTopic(text); return err }},
		{Name: metadataEnvironment, Check: func(text string) error { _, err := entra.Cloud(text); return err }},
		{Name: metadataAuthority, Check: checkService},
		{Name: metadataManager, Check: checkService},
		{Name: metadataManagerAudience},
	}
}

// Options configure a binding. All fields except Namespace, Direction and Transport are required.
type Options struct {
	Name, Namespace string // component name and the node's namespace
	Direction       bindings.Direction
	Metadata        component.Values
	Claims          bindings.Claims // let one of several nodes create the subscription
	Logger          *slog.Logger
	Transport       http.RoundTripper // transport to Azure; nil = the binding makes one
}

// Open checks the options and reads the certificates, but makes no connection. o.Direction selects input, output or
// both. If it is not set, the metadata decide: a field for input in o.Metadata selects input, and a field for output
// selects output. Open returns fault.Invalid if no direction is selected, or if the metadata of a selected direction is
// incomplete or malformed.
func Open(o Options) (bindings.Binding, error) {
	wanted, err := sides(o.Direction, o.Metadata)
	if err != nil {
		return bindings.Binding{}, err
	}
	if o.Transport == nil {
		o.Transport = rest.Transport(rest.TLS(nil))
	}
	o.Transport = rest.Limit(o.Transport)
	var b bindings.Binding
	closing := []func(context.Context) error{}
	if wanted.Input {
		in, err := newInput(o)
		if err != nil {
			return bindings.Binding{}, err
		}
		b.Input, closing = in, append(closing, in.close)
	}
	if wanted.Output {
		out, err := newOutput(o)
		if err != nil {
			return bindings.Binding{}, err
		}
		b.Output, closing = out, append(closing, out.close)
	}
	b.Close = func(ctx context.Context) error {
		var all []error
		for _, end := range closing {
			all = append(all, end(ctx))
		}
		if t, ok := o.Transport.(interface{ CloseIdleConnections() }); ok {
			t.CloseIdleConnections()
		}
		return errors.Join(all...)
	}
	return b, nil
}
