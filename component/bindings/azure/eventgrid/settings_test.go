package eventgrid_test

import (
	"bytes"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/component/bindings/azure/eventgrid"
	"github.com/quorate/quorate/component/bindings/azure/eventgrid/eventgridtest"
	"github.com/quorate/quorate/component/bindings/bindingstest"
	"github.com/quorate/quorate/internal/fault"
)

// unreachable returns a fake with addresses at which no server listens, for tests that do not connect.
func unreachable() *eventgridtest.Fake {
	c := eventgridtest.Default()
	return &eventgridtest.Fake{Config: c, URL: "https://azure.example", Ingress: "https://shop.example",
		Topic: "https://topic.example/api/events"}
}

func sidesOf(t *testing.T, m map[string]string, d bindings.Direction) (bindings.Binding, error) {
	t.Helper()
	b, err := tryOpen(nil, m, func(o *eventgrid.Options) { o.Direction = d })
	if err == nil {
		t.Cleanup(func() { _ = b.Close(t.Context()) })
	}
	return b, err
}

func TestOpen_NamesMissingFields(t *testing.T) {
	f := unreachable()
	names := map[string]string{"tenantId": "azureTenantId", "subscriptionId": "azureSubscriptionId",
		"clientId": "azureClientId", "clientSecret": "azureClientSecret"}
	for _, all := range []map[string]string{inputMetadata(f, "9000"), outputMetadata(f)} {
		for field := range all {
			if strings.HasPrefix(field, "azure") || field == "pollInterval" || field == "listenHost" {
				continue
			}
			less := maps.Clone(all)
			delete(less, field)
			name := names[field]
			if name == "" {
				name = field
			}
			_, err := sidesOf(t, less, bindings.Direction{})
			if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "missing metadata: "+name+" ") {
				t.Errorf("without %s: %v", field, err)
			}
			less[field] = ""
			if _, err := sidesOf(t, less, bindings.Direction{}); !fault.Is(err, fault.Invalid) ||
				!strings.Contains(err.Error(), name) {
				t.Errorf("with an empty %s: %v", field, err)
			}
		}
	}
	if _, err := sidesOf(t, nil, bindings.Direction{}); !fault.Is(err, fault.Invalid) ||
		!strings.Contains(err.Error(), "neither") {
		t.Errorf("with nothing: %v", err)
	}
}

func TestOpen_Sides(t *testing.T) {
	f := unreachable()
	in, out := inputMetadata(f, "9000"), outputMetadata(f)
	both := maps.Clone(in)
	maps.Copy(both, out)
	for _, row := range []struct {
		what          string
		m             map[string]string
		d             bindings.Direction
		input, output bool
		missing       string
	}{
		{what: "input", m: in, input: true},
		{what: "output", m: out, output: true},
		{what: "both", m: both, input: true, output: true},
		{what: "both, limited to the output", m: both, d: bindings.Direction{Output: true}, output: true},
		{what: "both, limited to the input", m: both, d: bindings.Direction{Input: true}, input: true},
		{what: "output with half an input, limited", m: with(out, "scope", topicScope),
			d: bindings.Direction{Output: true}, output: true},
		{what: "output with half an input", m: with(out, "scope", topicScope),
			missing: "azureTenantId, azureSubscriptionId, azureClientId, azureClientSecret, subscriberEndpoint, " +
				"handshakePort "},
		{what: "input with half an output", m: with(in, "accessKey", "k"), missing: "topicEndpoint "},
		{what: "input that should send", m: in, d: bindings.Direction{Output: true},
			missing: "accessKey, topicEndpoint "},
		{what: "a certificate in place of the secret",
			m: with(in, "clientSecret", "", "azureCertificateFile", "/none.pem"), missing: "azureCertificateFile"},
	} {
		b, err := sidesOf(t, row.m, row.d)
		switch {
		case row.missing != "":
			if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), row.missing) {
				t.Errorf("%s: %v", row.what, err)
			}
		case err != nil:
			t.Errorf("%s: %v", row.what, err)
		case (b.Input != nil) != row.input || (b.Output != nil) != row.output:
			t.Errorf("%s: input %v, output %v", row.what, b.Input != nil, b.Output != nil)
		}
	}
}

func TestOpen_AcceptsBothSetsOfNames(t *testing.T) {
	f := unreachable()
	old := inputMetadata(f, "9000")
	for _, names := range [][2]string{{"tenantId", "azureTenantId"}, {"subscriptionId", "azureSubscriptionId"},
		{"clientId", "azureClientId"}, {"clientSecret", "azureClientSecret"},
		{"tenantId", "spnTenantId"}, {"clientId", "spnClientId"}, {"clientSecret", "spnClientSecret"}, {"tenantId",
			"AZURETENANTID"}} {
		m := maps.Clone(old)
		m[names[1]] = m[names[0]]
		delete(m, names[0])
		if _, err := sidesOf(t, m, bindings.Direction{}); err != nil {
			t.Errorf("%s: %v", names[1], err)
		}
		m[names[0]] = old[names[0]]
		if _, err := sidesOf(t, m, bindings.Direction{}); !fault.Is(err, fault.Invalid) ||
			!strings.Contains(err.Error(), "are the same") {
			t.Errorf("%s and %s: %v", names[0], names[1], err)
		}
	}
}

func TestOpen_RefusesInvalidValues(t *testing.T) {
	f := unreachable()
	all := inputMetadata(f, "9000")
	maps.Copy(all, outputMetadata(f))
	for name, bad := range map[string][]string{
		"subscriberEndpoint": {"http://shop.example/api/events", "shop.example", "https://",
			"https://u:p@shop.example", "https://shop.example/#x"},
		"handshakePort":                {"0", "65536", "http", "+80", "-1"},
		"eventSubscriptionName":        {"ab", strings.Repeat("a", 65), "orders-grid", "örders", "orders grid"},
		"deliveryAuth":                 {"no", "off"},
		"pollInterval":                 {"0s", "2h", "often"},
		"topicEndpoint":                {"http://topic.example/api/events", "topic.example", "ftp://topic.example"},
		"accessKey":                    {"two words", "line\n"},
		"azureEnvironment":             {"moon"},
		"azureAuthorityHost":           {"http://login.example", "login.example"},
		"azureResourceManagerEndpoint": {"http://management.example"},
		"tenantId":                     {"../x", "a/b", "a?b", ".."},
		"subscriptionId":               {"other"},
		"scope": {"", "subscriptions/" + subscriptionID, "/", "/subscriptions", "/resourceGroups/x", "/subscriptions/" +
			subscriptionID + "/resourceGroups", "/subscriptions/" + subscriptionID + "/../x",
			"/subscriptions/" + subscriptionID + "/resourceGroups/shop/providers/Microsoft.EventGrid/topics",
			"/subscriptions/" + subscriptionID + "//resourceGroups/shop", topicScope + "?x=1", topicScope + "//",
			"/subscriptions/99999999-bbbb-cccc-dddd-eeeeeeeeeeee"},
	} {
		for _, value := range bad {
			if _, err := sidesOf(t, with(all, name, value), bindings.Direction{}); !fault.Is(err, fault.Invalid) ||
				!strings.Contains(strings.ToLower(err.Error()),
					strings.ToLower(strings.TrimPrefix(name, "azure"))[:4]) {
				t.Errorf("%s %q: %v", name, value, err)
			}
		}
	}
}

func TestParseScope_Forms(t *testing.T) {
	for _, scope := range []string{
		"/subscriptions/" + subscriptionID, "/subscriptions/" + subscriptionID + "/",
		"/subscriptions/" + subscriptionID + "/resourceGroups/shop", "/subscriptions/" + subscriptionID +
			"/resourcegroups/shop eu/",
		"/subscriptions/" + subscriptionID + "/resourceGroups/shop/providers/Microsoft.Storage/storageAccounts/orders",
		topicScope, topicScope + "/",
	} {
		f := newFake(t)
		port := freePort(t)
		f.Lead("127.0.0.1:" + port)
		b := open(t, f, with(inputMetadata(f, port), "scope", scope, "eventSubscriptionName", "mine123"))
		if err := b.Input.Start(t.Context(), bindingstest.NewSink()); err != nil {
			t.Fatal(err)
		}
		want := "PUT " + strings.ReplaceAll(strings.TrimSuffix(scope, "/"), " ", "%20") +
			"/providers/Microsoft.EventGrid/eventSubscriptions/mine123?api-version=2022-06-15"
		if got := requested(f, "management", "PUT"); !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %v", scope, got)
		}
	}
}

func TestOpen_DefaultPath(t *testing.T) {
	for _, slash := range []string{"", "/"} {
		f := newFake(t)
		port := freePort(t)
		f.Lead("127.0.0.1:" + port)
		b := open(t, f, with(inputMetadata(f, port), "subscriberEndpoint", f.Ingress+slash))
		sink := bindingstest.NewSink()
		if err := b.Input.Start(t.Context(), sink); err != nil {
			t.Fatal(err)
		}
		if o, err := f.Deliver(t.Context(), f.Ingress+"/api/events", rawEvents("1"), 1, 0); err != nil || !o.Handled {
			t.Error(o, err)
		}
	}
}

func TestOpen_NameWithoutValidSubscriptionName(t *testing.T) {
	m := inputMetadata(unreachable(), "9000")
	for name, good := range map[string]bool{"a-b": false, "ü-ü-ü": false, strings.Repeat("a", 65): false,
		"a-b-c": true} {
		v, err := values(m)
		if err != nil {
			t.Fatal(err)
		}
		b, err := eventgrid.Open(eventgrid.Options{Name: name, Metadata: v, Claims: &claims{},
			Logger: slog.New(slog.DiscardHandler)})
		if good != (err == nil) || !good &&
			(!fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "eventSubscriptionName")) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			_ = b.Close(t.Context())
		}
	}
}

func TestOpen_PortWithoutQuotes(t *testing.T) {
	m := component.Metadata{{Name: "handshakePort", Value: "9000", Bare: true}}
	if _, _, err := m.Check(component.Pos{}, "grid", eventgrid.Fields()); !fault.Is(err, fault.Invalid) ||
		!strings.Contains(err.Error(), `write it as "9000"`) {
		t.Errorf("%v", err)
	}
}

func TestOpen_WarnsAboutDeliveriesWithoutTokens(t *testing.T) {
	f := newFake(t)
	port := freePort(t)
	f.Lead("127.0.0.1:" + port)
	var log bytes.Buffer
	b := open(t, f, with(inputMetadata(f, port), "deliveryAuth", "none"),
		func(o *eventgrid.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	if err := b.Input.Start(t.Context(), bindingstest.NewSink()); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "level=WARN msg=\"deliveryAuth is none") {
		t.Errorf("logged %s", &log)
	}
	if len(requested(f, "identity", "GET")) > 1 { // the library requests only the configuration
		t.Errorf("requested %v", requested(f, "identity", ""))
	}
}
