package eventgrid

import (
	"errors"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/internal/entra"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/rest"
)

// defaultPath is the path of an endpoint without one.
const defaultPath = "/api/events"

// inputFields returns the names of the required and the optional metadata fields of an input. If the component sets no
// direction, the presence of any of these fields makes it an input.
func inputFields() (required, optional []string) {
	return []string{metadataTenant, metadataSubscription, metadataClient, metadataClientSecret, metadataEndpoint,
			metadataPort, metadataScope},
		[]string{metadataName, metadataCertificate, metadataCertificateFile}
}

func outputFields() []string { return []string{metadataAccessKey, metadataTopic} }

// sides returns the directions of the component: input, output or both. If d is not set, the metadata decide: a field
// for input in m selects input, and a field for output selects output. sides returns fault.Invalid if no direction is
// selected, or if a required field of a direction is missing.
func sides(d bindings.Direction, m component.Values) (bindings.Direction, error) {
	required, optional := inputFields()
	if !d.Given() {
		d = bindings.Direction{Input: anyGiven(m, append(required, optional...)), Output: anyGiven(m, outputFields())}
	}
	if !d.Given() {
		return d, &fault.Error{Code: fault.Invalid, Op: "eventgrid.Open",
			Msg:  "neither the metadata of the input nor those of the output are given",
			Hint: "to publish give " + listed(outputFields()) + "; to receive give " + listed(required)}
	}
	var missing []string
	if d.Input {
		missing = lacking(m, required)
	}
	if d.Output {
		missing = append(missing, lacking(m, outputFields())...)
	}
	if len(missing) == 0 {
		return d, nil
	}
	return d, &fault.Error{Code: fault.Invalid, Op: "eventgrid.Open", Msg: "missing metadata: " + listed(missing),
		Hint: hintFor(d)}
}

func hintFor(d bindings.Direction) string {
	required, _ := inputFields()
	switch {
	case d.Input && d.Output:
		return `add it, or limit the component to one side with direction "input" or "output"`
	case d.Input:
		return "to receive events a component needs " + listed(required)
	}
	return "to publish events a component needs " + listed(outputFields())
}

func anyGiven(m component.Values, names []string) bool {
	for _, name := range names {
		if m.Given(name) {
			return true
		}
	}
	return false
}

// lacking returns the given names that have no value in m. It omits the client secret if m has a certificate.
func lacking(m component.Values, names []string) []string {
	var out []string
	for _, name := range names {
		certified := name == metadataClientSecret &&
			(m.Text(metadataCertificate) != "" || m.Text(metadataCertificateFile) != "")
		if m.Text(name) == "" && !certified {
			out = append(out, name)
		}
	}
	return out
}

func listed(names []string) string { return strings.Join(names, ", ") }

// inputSettings are the checked metadata of the input side.
type inputSettings struct {
	tenant, client  string
	endpoint        *url.URL // endpoint URL, always with a path
	asGiven         string   // the endpoint as in the component
	host            string
	port            int
	scope           string // resource id as a URL path, without a trailing slash
	name            string // name of the event subscription
	protected       bool   // deliveries have a bearer token
	poll            time.Duration
	identity        entra.Settings
	manager         string // address of the resource manager; empty = the environment's
	managerAudience string
}

func readInput(o Options) (inputSettings, error) {
	m := o.Metadata
	s := inputSettings{
		tenant: m.Text(metadataTenant), client: m.Text(metadataClient), asGiven: m.Text(metadataEndpoint),
		host:      m.Text(metadataHost),
		protected: !strings.EqualFold(m.Text(metadataAuth), authNone), poll: m.Duration(metadataPoll),
		manager:         strings.TrimRight(m.Text(metadataManager), "/"),
		managerAudience: strings.TrimRight(m.Text(metadataManagerAudience), "/"),
	}
	s.identity = entra.Settings{
		Environment: m.Text(metadataEnvironment), AuthorityHost: authority(m), Tenant: s.tenant, Client: s.client,
		ClientSecret: m.Text(metadataClientSecret), Certificate: m.Text(metadataCertificate),
		CertificateFile:     m.Text(metadataCertificateFile),
		CertificatePassword: m.Text(metadataCertificatePassword), Transport: o.Transport,
	}
	var err error
	if s.endpoint, err = parseEndpoint(s.asGiven); err != nil {
		return s, wrong(metadataEndpoint, err)
	}
	if s.port, err = parsePort(m.Text(metadataPort)); err != nil {
		return s, wrong(metadataPort, err)
	}
	if s.scope, err = parseScope(m.Text(metadataScope)); err != nil {
		return s, wrong(metadataScope, err)
	}
	if of := subscriptionOf(s.scope); !strings.EqualFold(of, m.Text(metadataSubscription)) {
		return s, &fault.Error{Code: fault.Invalid, Op: "eventgrid.Open",
			Msg: "scope lies in the subscription " + of + ", but " + metadataSubscription + " is " +
				m.Text(metadataSubscription),
			Hint: "name the subscription of the scope in both"}
	}
	s.name, err = subscriptionName(m.Text(metadataName), o.Name)
	return s, err
}

// wrong adds the name of the field to an error.
func wrong(name string, err error) error {
	return &fault.Error{Code: fault.Invalid, Op: "eventgrid.Open", Msg: "metadata " + name + " " + err.Error()}
}

// authority returns the URL of the identity service, or "" if none is configured. The URL ends with a slash, as the
// Azure client library requires.
func authority(m component.Values) string {
	if host := m.Text(metadataAuthority); host != "" {
		return strings.TrimRight(host, "/") + "/"
	}
	return ""
}

// parseEndpoint parses the address that Event Grid delivers to, and adds the default path.
func parseEndpoint(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.Fragment != "" {
		return nil, errors.New("is not an address such as https://orders.example.com/api/events; Event Grid " +
			"delivers over https alone")
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = defaultPath
	}
	return u, nil
}

func parsePort(text string) (int, error) {
	port, err := strconv.Atoi(text)
	if err != nil || port < 1 || port > 65535 || text[0] == '+' {
		return 0, errors.New("is not a port from 1 to 65535")
	}
	return port, nil
}

// checkIdentifier returns an error unless text can be an id in a URL path, such as a GUID. Domain names are valid,
// because they can identify a tenant.
func checkIdentifier(text string) error {
	for _, c := range []byte(text) {
		if !letterOrDigit(c) && c != '-' && c != '.' {
			return errors.New("is not an identifier such as 11111111-2222-3333-4444-555555555555")
		}
	}
	if strings.Trim(text, ".") == "" || len(text) > 253 {
		return errors.New("is not an identifier such as 11111111-2222-3333-4444-555555555555")
	}
	return nil
}

func letterOrDigit(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

func checkName(text string) error {
	if len(text) < 3 || len(text) > 64 || reduced(text) != text {
		return errors.New("must have 3 to 64 characters, letters and digits only")
	}
	return nil
}

// reduced keeps only the letters and digits of a text.
func reduced(text string) string {
	return strings.Map(func(r rune) rune {
		if r < 128 && letterOrDigit(byte(r)) {
			return r
		}
		return -1
	}, text)
}

// subscriptionName returns the name of the event subscription. This is the configured name, if there is one. Otherwise
// it is the component's name, reduced to letters and digits. subscriptionName returns an error if the name is not valid
// in Event Grid.
func subscriptionName(configured, component string) (string, error) {
	if configured != "" {
		if err := checkName(configured); err != nil {
			return "", wrong(metadataName, err)
		}
		return configured, nil
	}
	name := reduced(component)
	if checkName(name) != nil {
		return "", &fault.Error{Code: fault.Invalid, Op: "eventgrid.Open",
			Msg: "the component's name makes no name of an event subscription: of its letters and digits there are " +
				strconv.Itoa(len(name)) + ", and 3 to 64 are needed",
			Hint: "give " + metadataName}
	}
	return name, nil
}

func checkAuth(text string) error {
	if !strings.EqualFold(text, authEntra) && !strings.EqualFold(text, authNone) {
		return errors.New("is neither " + authEntra + " nor " + authNone)
	}
	return nil
}

func checkPoll(text string) error {
	if d, err := time.ParseDuration(text); err != nil || d < time.Millisecond || d > time.Hour {
		return errors.New("is not a duration from 1ms to 1h")
	}
	return nil
}

// checkKey returns an error for a value that is invalid in a header.
func checkKey(text string) error {
	for _, c := range []byte(text) {
		if c <= ' ' || c >= 0x7f {
			return errors.New("is not an access key")
		}
	}
	return nil
}

// checkService returns an error unless text is an https address, because the service receives credentials.
func checkService(text string) error {
	base, err := rest.Base("it", text)
	if err != nil || !strings.HasPrefix(base, "https://") {
		return errors.New("is not an address such as https://service.example")
	}
	return nil
}

// parseTopic parses the URL of a topic. It allows http only for a topic on this machine, because the access key is sent
// with each request and must not be readable in transit.
func parseTopic(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil ||
		u.Fragment != "":
		return nil, errors.New("is not an address such as https://orders.westeurope-1.eventgrid.azure.net/api/events")
	case rest.Exposed(u.Scheme + "://" + u.Host):
		return nil, errors.New("is not https: the access key could be read in transit; http is for this machine alone")
	}
	return u, nil
}
