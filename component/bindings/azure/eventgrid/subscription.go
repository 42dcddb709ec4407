package eventgrid

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/quorate/quorate/internal/fault"
)

// The values of the management API.
const (
	schemaCloudEvents = "CloudEventSchemaV1_0"
	kindWebHook       = "WebHook"
	stateSucceeded    = "Succeeded"
)

// object is a JSON object whose members keep their original text.
type object map[string]json.RawMessage

// subscription is the part of an event subscription that this package reads.
type subscription struct {
	Properties struct {
		State       string       `json:"provisioningState"`
		Schema      string       `json:"eventDeliverySchema"`
		Destination *destination `json:"destination"`
	} `json:"properties"`
}

type destination struct {
	Kind       string `json:"endpointType"`
	Properties struct {
		URL     string `json:"endpointUrl"`
		BaseURL string `json:"endpointBaseUrl"`
		Tenant  string `json:"azureActiveDirectoryTenantId"`
		Client  string `json:"azureActiveDirectoryApplicationIdOrUri"`
	} `json:"properties"`
}

// settled reports whether the service has finished creating or changing the subscription, successfully or not.
func (s *subscription) settled() bool {
	switch strings.ToLower(s.Properties.State) {
	case "creating", "updating", "deleting":
		return false
	}
	return true
}

// good reports whether the last change of the subscription succeeded. If the service reports no state, good returns
// true.
func (s *subscription) good() bool {
	return s.Properties.State == "" || strings.EqualFold(s.Properties.State, stateSucceeded)
}

// matches reports whether the subscription delivers events as this node requires. fullURL is the result of fullAddress,
// or "" if it is not known. If neither fullURL nor the subscription has the complete URL, matches compares the URLs
// without their queries.
func (s *subscription) matches(want *inputSettings, fullURL string) bool {
	d := s.Properties.Destination
	if d == nil || d.Kind != kindWebHook || s.Properties.Schema != schemaCloudEvents || !s.good() {
		return false
	}
	if want.protected && (!strings.EqualFold(d.Properties.Tenant, want.tenant) ||
		!strings.EqualFold(d.Properties.Client, want.client)) {
		return false
	}
	switch {
	case fullURL != "":
		return sameAddress(fullURL, want.endpoint)
	case d.Properties.URL != "":
		return sameAddress(d.Properties.URL, want.endpoint)
	}
	base := *want.endpoint
	base.RawQuery = ""
	return sameAddress(d.Properties.BaseURL, &base)
}

// hidesQuery reports whether the endpoint has a query that the service omitted, as it may contain a secret. The caller
// must then get the complete URL with fullAddress.
func (s *subscription) hidesQuery(want *inputSettings) bool {
	d := s.Properties.Destination
	return d != nil && d.Kind == kindWebHook && d.Properties.URL == "" && want.endpoint.RawQuery != ""
}

func sameAddress(text string, want *url.URL) bool {
	got, err := parseEndpoint(text)
	return err == nil && strings.EqualFold(got.Host, want.Host) && got.EscapedPath() == want.EscapedPath() &&
		got.RawQuery == want.RawQuery
}

// wanted returns the document that creates or changes the subscription. existing is the current document, or empty if
// there is no subscription. Properties that the component does not set, such as filters, stay unchanged.
func wanted(s *inputSettings, existing []byte) ([]byte, error) {
	document, err := open(existing)
	if err != nil {
		return nil, err
	}
	for _, readOnly := range []string{"id", "name", "type", "systemData"} {
		delete(document, readOnly)
	}
	properties, err := open(document["properties"])
	if err != nil {
		return nil, err
	}
	for _, readOnly := range []string{"topic", "provisioningState"} {
		delete(properties, readOnly)
	}
	delete(properties, "deliveryWithResourceIdentity") // Event Grid accepts only this or destination
	if properties["destination"], err = wantedDestination(s, properties["destination"]); err != nil {
		return nil, err
	}
	properties["eventDeliverySchema"] = text(schemaCloudEvents)
	document["properties"] = properties.bytes()
	return document.bytes(), nil
}

func wantedDestination(s *inputSettings, existing json.RawMessage) (json.RawMessage, error) {
	d, err := open(existing)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(d["endpointType"], text(kindWebHook)) {
		d = object{}
	}
	properties, err := open(d["properties"])
	if err != nil {
		return nil, err
	}
	if hidesSecret(properties["deliveryAttributeMappings"]) {
		return nil, &fault.Error{Code: fault.Invalid, Op: "eventgrid.Start",
			Msg: "the existing event subscription " + s.name +
				" must be changed, but has a secret delivery attribute, which would be lost",
			Hint: "set its endpoint to " + shown(s.endpoint) + " by hand, remove the attribute, or give another " +
				metadataName}
	}
	delete(properties, "endpointBaseUrl")
	properties["endpointUrl"] = text(s.endpoint.String())
	if s.protected {
		properties["azureActiveDirectoryTenantId"] = text(s.tenant)
		properties["azureActiveDirectoryApplicationIdOrUri"] = text(s.client)
	}
	d["endpointType"], d["properties"] = text(kindWebHook), properties.bytes()
	return d.bytes(), nil
}

// hidesSecret reports whether one of the given delivery attributes is secret. The service does not return secret
// values, so they would be lost if the attributes were written back.
func hidesSecret(mappings json.RawMessage) bool {
	var all []struct {
		Properties struct {
			Secret bool `json:"isSecret"`
		} `json:"properties"`
	}
	if len(mappings) == 0 || json.Unmarshal(mappings, &all) != nil {
		return false
	}
	for _, m := range all {
		if m.Properties.Secret {
			return true
		}
	}
	return false
}

// open parses an object. Empty input and null are an empty object.
func open(data []byte) (object, error) {
	o := object{}
	if len(data) == 0 {
		return o, nil
	}
	if err := json.Unmarshal(data, &o); err != nil {
		return nil, unexpected()
	}
	if o == nil {
		o = object{}
	}
	return o, nil
}

func unexpected() error {
	return &fault.Error{Code: fault.Corrupt, Op: "eventgrid.Start",
		Msg:  "the resource manager answered something else than an event subscription",
		Hint: "check " + metadataManager}
}

// bytes returns the object as JSON, with the members sorted by name.
func (o object) bytes() []byte {
	out := []byte{'{'}
	for i, name := range sortedNames(o) {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(append(out, text(name)...), ':'), o[name]...)
	}
	return append(out, '}')
}

// text returns a string as JSON. Unlike Marshal it does not escape <, > and &.
func text(s string) json.RawMessage {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if encoder.Encode(s) != nil { // a string can always be encoded
		return json.RawMessage(`""`)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

func sortedNames(o object) []string { return slices.Sorted(maps.Keys(o)) }
