package eventgrid

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	armruntime "github.com/Azure/azure-sdk-for-go/sdk/azcore/arm/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"

	"github.com/quorate/quorate/internal/entra"
	"github.com/quorate/quorate/internal/fault"
)

// apiVersion is that of the management API. Newer ones say the same of what is read here.
const apiVersion = "2022-06-15"

// callTime bounds one call of the management API with its repetitions.
const callTime = 30 * time.Second

// maxReason bounds the service's own words in an error, in bytes.
const maxReason = 600

// managerName is the service in messages.
const managerName = "the resource manager"

// manager calls the management API for one event subscription. It is immutable.
type manager struct {
	settings *inputSettings
	pipeline runtime.Pipeline
	base     *url.URL // of the service
	address  string   // of the event subscription, without a query
}

func newManager(s *inputSettings) (*manager, error) {
	options, err := s.identity.Options()
	if err != nil {
		return nil, err
	}
	credential, err := s.identity.Credential()
	if err != nil {
		return nil, err
	}
	service := options.Cloud.Services[cloud.ResourceManager]
	if s.manager != "" {
		service = cloud.ServiceConfiguration{Endpoint: s.manager, Audience: s.manager}
	}
	service.Audience = strings.TrimRight(cmp.Or(s.managerAudience, service.Audience), "/")
	options.Cloud.Services = maps.Clone(options.Cloud.Services)
	options.Cloud.Services[cloud.ResourceManager] = service
	pipeline, err := armruntime.NewPipeline("quorate", "v1", credential, runtime.PipelineOptions{}, &arm.ClientOptions{
		ClientOptions: options, DisableRPRegistration: true, // that would need more rights than the binding does
	})
	if err != nil {
		return nil, &fault.Error{Code: fault.Invalid, Op: "eventgrid.Open", Msg: "the settings of the resource manager are incomplete", Err: err}
	}
	base, err := url.Parse(service.Endpoint)
	if err != nil {
		return nil, wrong(metadataManager, err)
	}
	return &manager{settings: s, pipeline: pipeline, base: base,
		address: strings.TrimRight(service.Endpoint, "/") + s.scope + "/providers/Microsoft.EventGrid/eventSubscriptions/" + s.name}, nil
}

// answer is what the service said.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// call makes one call. Its error is about the way there; statuses are the caller's.
func (m *manager) call(ctx context.Context, method, address string, body []byte) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	request, err := runtime.NewRequest(ctx, method, address)
	if err != nil {
		return nil, &fault.Error{Code: fault.Invalid, Op: "eventgrid.call", Msg: "the address of " + managerName + " is not valid"}
	}
	request.Raw().Header.Set("Accept", "application/json")
	if body != nil {
		if err := request.SetBody(streaming.NopCloser(bytes.NewReader(body)), "application/json"); err != nil {
			return nil, fault.Wrap(err, "eventgrid.call", "the request")
		}
	}
	response, err := m.pipeline.Do(request)
	if err != nil {
		return nil, entra.Failure(ctx, managerName, err)
	}
	defer response.Body.Close() //nolint:errcheck // what matters has been read
	said, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, entra.Failure(ctx, managerName, err)
	}
	return &answer{status: response.StatusCode, header: response.Header, body: said}, nil
}

func (m *manager) of(action string) string {
	return m.address + action + "?api-version=" + apiVersion
}

// get reads the subscription; nil = there is none.
func (m *manager) get(ctx context.Context) (*subscription, []byte, error) {
	a, err := m.call(ctx, http.MethodGet, m.of(""), nil)
	switch {
	case err != nil:
		return nil, nil, err
	case a.status == http.StatusNotFound:
		return nil, nil, nil
	case a.status != http.StatusOK:
		return nil, nil, m.refused("reading the event subscription", a)
	}
	var s subscription
	if json.Unmarshal(a.body, &s) != nil {
		return nil, nil, unexpected()
	}
	return &s, a.body, nil
}

// fullAddress asks for the endpoint of the subscription with its query. Where the
// application may not ask, it is empty: the address without the query has to do then.
func (m *manager) fullAddress(ctx context.Context) (string, error) {
	a, err := m.call(ctx, http.MethodPost, m.of("/getFullUrl"), nil)
	switch {
	case err != nil:
		return "", err
	case a.status == http.StatusForbidden:
		return "", nil
	case a.status != http.StatusOK:
		return "", m.refused("reading the endpoint of the event subscription", a)
	}
	var said struct {
		URL string `json:"endpointUrl"`
	}
	if json.Unmarshal(a.body, &said) != nil {
		return "", unexpected()
	}
	return said.URL, nil
}

// put creates or changes the subscription. It returns the address at which to ask how the
// work goes on, if the service gives one that is its own.
func (m *manager) put(ctx context.Context, document []byte) (operation string, err error) {
	a, err := m.call(ctx, http.MethodPut, m.of(""), document)
	if err != nil {
		return "", err
	}
	if a.status != http.StatusOK && a.status != http.StatusCreated && a.status != http.StatusAccepted {
		return "", m.refused("creating the event subscription "+m.settings.name, a)
	}
	if operation = a.header.Get("Azure-AsyncOperation"); m.own(operation) {
		return operation, nil
	}
	return "", nil
}

// own reports whether an address is one of the resource manager: a token goes along.
func (m *manager) own(address string) bool {
	u, err := url.Parse(address)
	return err == nil && u.Scheme == "https" && u.User == nil && hostPort(u) == hostPort(m.base)
}

func hostPort(u *url.URL) string {
	return strings.ToLower(u.Hostname()) + ":" + cmp.Or(u.Port(), "443")
}

// progress asks how an operation goes on. done is set once it succeeded.
func (m *manager) progress(ctx context.Context, operation string) (done bool, err error) {
	a, err := m.call(ctx, http.MethodGet, operation, nil)
	if err != nil {
		return false, err
	}
	if a.status == http.StatusAccepted {
		return false, nil
	}
	var said struct {
		Status string `json:"status"`
	}
	if a.status != http.StatusOK || json.Unmarshal(a.body, &said) != nil {
		return false, m.refused("creating the event subscription "+m.settings.name, a)
	}
	switch strings.ToLower(said.Status) {
	case "succeeded":
		return true, nil
	case "failed", "canceled":
		return false, m.problem("the event subscription "+m.settings.name+" was not created", fault.Unavailable, a)
	}
	return false, nil
}

// refused words an answer that is no success, with the service's own reason.
func (m *manager) refused(doing string, a *answer) error {
	code := entra.Failure(context.Background(), managerName, &azcore.ResponseError{StatusCode: a.status}).Code
	return m.problem(fmt.Sprintf("%s: %s answered %d", doing, managerName, a.status), code, a)
}

// problem makes an error of the reason in an answer.
func (m *manager) problem(msg string, code fault.Code, a *answer) error {
	var said struct {
		Error struct{ Code, Message string }
	}
	_ = json.Unmarshal(a.body, &said) // an answer without a reason has none to show
	e := &fault.Error{Code: code, Op: "eventgrid.Start", Msg: msg}
	if reason := m.clean(said.Error.Code + " " + said.Error.Message); reason != "" {
		e.Msg += ": " + reason
	}
	e.Hint = m.mend(a.status, said.Error.Code, said.Error.Message)
	return e
}

// mend says what to do about a refusal.
func (m *manager) mend(status int, code, message string) string {
	says := func(word string) bool {
		return strings.Contains(strings.ToLower(code+" "+message), strings.ToLower(word))
	}
	switch {
	case says("MissingSubscriptionRegistration"):
		return "register the resource provider Microsoft.EventGrid in the subscription"
	case says("validat") || says("handshake"):
		return "check that " + shown(m.settings.endpoint) + " can be reached from outside, has a certificate of a public authority, and leads OPTIONS and POST to " +
			metadataPort + fmt.Sprintf(" %d", m.settings.port)
	case status == http.StatusForbidden:
		return "give the application " + m.settings.client + " the role EventGrid EventSubscription Contributor at the scope"
	case status == http.StatusUnauthorized:
		return "check " + metadataTenant + ", " + metadataClient + " and the client secret"
	case status == http.StatusNotFound:
		return "check " + metadataScope + ": the resource must exist"
	}
	return ""
}

// clean shows a reason on one line, bounded, without what may be a secret.
func (m *manager) clean(reason string) string {
	reason = strings.Join(strings.Fields(reason), " ")
	for _, secret := range []string{m.settings.identity.ClientSecret, m.settings.endpoint.RawQuery} {
		if secret != "" {
			reason = strings.ReplaceAll(reason, secret, "***")
		}
	}
	for _, values := range m.settings.endpoint.Query() {
		for _, value := range values {
			if value != "" {
				reason = strings.ReplaceAll(reason, value, "***")
			}
		}
	}
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "") + "..."
	}
	return reason
}

// shown is an address without its query, which may be a secret.
func shown(u *url.URL) string { return u.Scheme + "://" + u.Host + u.EscapedPath() }
