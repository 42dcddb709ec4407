package component

import (
	"cmp"
	"net/url"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/quorate/quorate/internal/pathpattern"
)

// TracingConfig is the section tracing: which spans are recorded, and where they are sent.
type TracingConfig struct {
	SamplingRate float64 // from 0 to 1
	OTLP         *OTLPConfig
	Zipkin       string // URL of a Zipkin collector; empty = none
	Pos          Pos
}

// OTLPConfig is a collector of traces.
type OTLPConfig struct {
	Endpoint string // host:port, or a URL
	Protocol string // "http" or "grpc"
	Insecure bool   // connect without TLS
	Headers  map[string]string
	Timeout  time.Duration // longest time of one export; 0 = the default
}

// MetricsConfig is the section metrics.
type MetricsConfig struct {
	Enabled      bool
	DaprNames    bool      // also export metrics with Dapr's names
	NoPaths      bool      // leave the label path of metrics with Dapr's names empty, unless an element of Paths fits
	Paths        []string  // patterns of paths that become the label path
	ExcludeVerbs bool      // leave the label method of metrics with Dapr's names empty
	ErrorCodes   bool      // count errors by their code
	Buckets      []float64 // upper bounds of the latency histograms with Dapr's names, in milliseconds; nil = Dapr's
	Pos          Pos
}

// APILogConfig is the setting logging.apiLogging: one log line for each request of the API.
type APILogConfig struct {
	Enabled       bool
	ObfuscateURLs bool // log the name of the operation instead of the path
	OmitHealth    bool // do not log health probes
}

// APIRules is the section api: which parts of the API are served.
type APIRules struct {
	Allowed, Denied []APIRule
}

// APIRule names one part of the API.
type APIRule struct {
	Name     string // name of the part, such as state
	Version  string // such as v1.0 for HTTP and v1 for gRPC
	Protocol string // http or grpc
}

// PipelineHandler is one element of the sections httpPipeline and appHttpPipeline.
type PipelineHandler struct {
	Name string // name of the component
	Type string // type of the component
	Pos  Pos
}

// DefaultSamplingRate is the sampling rate of a section tracing that sets none.
const DefaultSamplingRate = 0.0001

func (p *docParser) tracing(n *yaml.Node, c *Configuration) {
	if isNull(n) {
		return
	}
	t := copyOf(c.Tracing, TracingConfig{SamplingRate: DefaultSamplingRate})
	t.Pos = p.pos(n)
	p.readFields(n, "spec.tracing", fields{
		"samplingRate": func(n *yaml.Node) { t.SamplingRate = p.samplingRate(n) },
		"otel":         func(n *yaml.Node) { t.OTLP = p.otlp(n, t.OTLP) },
		"stdout": func(n *yaml.Node) {
			if p.boolean(n, "spec.tracing.stdout") {
				c.unused(p.pos(n), "spec.tracing.stdout has no effect here", "send the spans to a collector: "+
					"spec.tracing.otel")
			}
		},
		"zipkin": func(n *yaml.Node) {
			p.readFields(n, "spec.tracing.zipkin", fields{
				"endpointAddress": func(n *yaml.Node) { t.Zipkin = p.zipkin(n) },
			})
		},
	})
	c.Tracing = t
}

// zipkin returns the URL of a Zipkin collector. For an invalid URL, zipkin reports a problem and returns "".
func (p *docParser) zipkin(n *yaml.Node) string {
	const what = "spec.tracing.zipkin.endpointAddress"
	text := p.text(n, what)
	u, err := url.Parse(text)
	if text != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		p.problems.add(p.pos(n), "give a URL, as http://localhost:9411/api/v2/spans", "%s is no address", what)
		return ""
	}
	return text
}

func (p *docParser) samplingRate(n *yaml.Node) float64 {
	text := p.text(n, "spec.tracing.samplingRate")
	if text == "" {
		return DefaultSamplingRate
	}
	rate, err := strconv.ParseFloat(text, 64)
	if err != nil || !(rate >= 0 && rate <= 1) {
		p.problems.add(p.pos(n), `give a number from "0" (no spans) to "1" (all)`,
			"spec.tracing.samplingRate is %q", text)
		return DefaultSamplingRate
	}
	return rate
}

func (p *docParser) otlp(n *yaml.Node, earlier *OTLPConfig) *OTLPConfig {
	if isNull(n) {
		return nil
	}
	const what = "spec.tracing.otel"
	o := copyOf(earlier, OTLPConfig{Protocol: "grpc", Headers: map[string]string{}})
	p.readFields(n, what, fields{
		"endpointAddress": func(n *yaml.Node) { o.Endpoint = p.text(n, what+".endpointAddress") },
		"protocol":        func(n *yaml.Node) { o.Protocol = p.otlpProtocol(n) },
		"isSecure":        func(n *yaml.Node) { o.Insecure = !isNull(n) && !p.boolean(n, what+".isSecure") },
		"timeout":         func(n *yaml.Node) { o.Timeout = p.exportTimeout(n) },
		"headers":         func(n *yaml.Node) { o.Headers = p.otlpHeaders(n) },
	})
	if u, err := url.Parse(o.Endpoint); strings.Contains(o.Endpoint, "://") && (err != nil || u.Host == "") {
		p.problems.add(p.pos(n), "give host:port, as collector:4317", "%s.endpointAddress is no address", what)
	}
	return o
}

func (p *docParser) otlpProtocol(n *yaml.Node) string {
	switch text := strings.ToLower(p.text(n, "spec.tracing.otel.protocol")); text {
	case "", "grpc":
		return "grpc"
	case "http", "http/protobuf":
		return "http"
	default:
		p.problems.add(p.pos(n), "use grpc or http", "spec.tracing.otel.protocol is %q", text)
		return "grpc"
	}
}

func (p *docParser) exportTimeout(n *yaml.Node) time.Duration {
	text := p.text(n, "spec.tracing.otel.timeout")
	d, err := time.ParseDuration(cmp.Or(text, "0s"))
	if err != nil || d < 0 {
		p.problems.add(p.pos(n), "use a duration such as 10s", "spec.tracing.otel.timeout is %q", text)
	}
	return d
}

// otlpHeaders reads a list of headers. An element has one of the two forms that Dapr documents: "name=value", or a
// mapping with name and value.
func (p *docParser) otlpHeaders(n *yaml.Node) map[string]string {
	to := map[string]string{}
	const what = "spec.tracing.otel.headers"
	if n.Kind != yaml.SequenceNode {
		if !isNull(n) {
			p.problems.add(p.pos(n), "", "%s must be a list, not %s", what, describe(n))
		}
		return to
	}
	for _, element := range n.Content {
		var name, value string
		if element.Kind == yaml.MappingNode {
			p.readFields(element, "an element of "+what, fields{
				"name":  func(n *yaml.Node) { name = p.required(n, "name") },
				"value": func(n *yaml.Node) { value = p.text(n, "value") },
			})
		} else {
			name, value, _ = strings.Cut(p.text(element, "an element of "+what), "=")
		}
		if name == "" {
			p.problems.add(p.pos(element), "write name=value", "an element of %s has no name", what)
			continue
		}
		to[name] = value
	}
	return to
}

func (p *docParser) metrics(n *yaml.Node, c *Configuration) {
	if isNull(n) {
		return
	}
	m := copyOf(c.Metrics, MetricsConfig{Enabled: true})
	m.Pos = p.pos(n)
	ignored := func(name string) func(*yaml.Node) {
		return func(n *yaml.Node) {
			if len(n.Content) > 0 {
				c.unused(p.pos(n), "spec.metrics."+name+" has no effect here", "")
			}
		}
	}
	p.readFields(n, "spec.metrics", fields{
		"enabled": func(n *yaml.Node) {
			m.Enabled = isNull(n) || p.boolean(n, "spec.metrics.enabled")
		},
		"daprNames": func(n *yaml.Node) {
			m.DaprNames = p.boolean(n, "spec.metrics.daprNames")
		},
		"latencyDistributionBuckets": func(n *yaml.Node) { m.Buckets = p.buckets(n) },
		"recordErrorCodes": func(n *yaml.Node) {
			m.ErrorCodes = !isNull(n) && p.boolean(n, "spec.metrics.recordErrorCodes")
		},
		"http": func(n *yaml.Node) {
			p.readFields(n, "spec.metrics.http", fields{
				"increasedCardinality": func(n *yaml.Node) {
					m.NoPaths = !isNull(n) && !p.boolean(n, "spec.metrics.http.increasedCardinality")
				},
				"excludeVerbs": func(n *yaml.Node) {
					m.ExcludeVerbs = !isNull(n) && p.boolean(n, "spec.metrics.http.excludeVerbs")
				},
				"pathMatching": func(n *yaml.Node) {
					m.Paths = p.texts(n, "spec.metrics.http.pathMatching")
					if _, err := pathpattern.New(m.Paths); err != nil {
						p.problems.add(p.pos(n), "", "spec.metrics.http.pathMatching: %v", err)
					}
				},
			})
		},
		"rules": ignored("rules"),
	})
	c.Metrics = m
}

// needsDaprNames returns the name of a setting in m that applies only to metrics with Dapr's names, or "" if m has
// none.
func (m *MetricsConfig) needsDaprNames() string {
	switch {
	case m.Buckets != nil:
		return "latencyDistributionBuckets"
	case m.NoPaths || m.ExcludeVerbs || len(m.Paths) > 0:
		return "http"
	case m.ErrorCodes:
		return "recordErrorCodes"
	}
	return ""
}

func (p *docParser) buckets(n *yaml.Node) (out []float64) {
	const what = "spec.metrics.latencyDistributionBuckets"
	for _, text := range p.texts(n, what) {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil || v <= 0 || len(out) > 0 && v <= out[len(out)-1] {
			p.problems.add(p.pos(n), "give growing numbers of milliseconds, as [5, 50, 500]", "%s has the element %q",
				what, text)
			return nil
		}
		out = append(out, v)
	}
	return out
}

func (p *docParser) logging(n *yaml.Node, c *Configuration) {
	if isNull(n) {
		return
	}
	const what = "spec.logging.apiLogging"
	p.readFields(n, "spec.logging", fields{"apiLogging": func(n *yaml.Node) {
		if isNull(n) {
			return
		}
		l := copyOf(c.APILog, APILogConfig{})
		p.readFields(n, what, fields{
			"enabled":          func(n *yaml.Node) { l.Enabled = p.boolean(n, what+".enabled") },
			"obfuscateURLs":    func(n *yaml.Node) { l.ObfuscateURLs = p.boolean(n, what+".obfuscateURLs") },
			"omitHealthChecks": func(n *yaml.Node) { l.OmitHealth = p.boolean(n, what+".omitHealthChecks") },
		})
		c.APILog = l
	}})
}

func (p *docParser) api(n *yaml.Node, c *Configuration) {
	if isNull(n) {
		return
	}
	rules := &APIRules{}
	p.readFields(n, "spec.api", fields{
		"allowed": func(n *yaml.Node) { rules.Allowed = p.apiRules(n, "spec.api.allowed") },
		"denied":  func(n *yaml.Node) { rules.Denied = p.apiRules(n, "spec.api.denied") },
	})
	if len(rules.Allowed)+len(rules.Denied) > 0 {
		c.API = rules
	}
}

func (p *docParser) apiRules(n *yaml.Node, what string) (out []APIRule) {
	if isNull(n) {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		p.problems.add(p.pos(n), "", "%s must be a list, not %s", what, describe(n))
		return nil
	}
	for _, element := range n.Content {
		var r APIRule
		p.readFields(element, "an element of "+what, fields{
			"name":     func(n *yaml.Node) { r.Name = p.required(n, what+": name") },
			"version":  func(n *yaml.Node) { r.Version = p.required(n, what+": version") },
			"protocol": func(n *yaml.Node) { r.Protocol = strings.ToLower(p.required(n, what+": protocol")) },
		})
		switch {
		case r.Name == "" || r.Version == "":
			p.problems.add(p.pos(element), "as {name: state, version: v1.0, protocol: http}",
				"an element of %s needs name, version and protocol", what)
		case r.Protocol != "http" && r.Protocol != "grpc":
			p.problems.add(p.pos(element), "use http or grpc", "%s: the protocol is %q", what, r.Protocol)
		}
		out = append(out, r)
	}
	return out
}

// pipeline adds the handlers of a section to out.
func (p *docParser) pipeline(n *yaml.Node, section string, out *[]PipelineHandler) {
	if isNull(n) {
		return
	}
	what := section + ".handlers"
	p.readFields(n, section, fields{"handlers": func(n *yaml.Node) {
		if isNull(n) {
			return
		}
		if n.Kind != yaml.SequenceNode {
			p.problems.add(p.pos(n), "", "%s must be a list, not %s", what, describe(n))
			return
		}
		for _, element := range n.Content {
			h := PipelineHandler{Pos: p.pos(element)}
			p.readFields(element, "an element of "+what, fields{
				"name":    func(n *yaml.Node) { h.Name = p.required(n, what+": name") },
				"type":    func(n *yaml.Node) { h.Type = p.required(n, what+": type") },
				"version": func(*yaml.Node) {},
				"selector": func(n *yaml.Node) {
					if at := child(n, "fields"); at != nil && len(at.Content) > 0 {
						p.problems.add(p.pos(at), "remove it", "%s: selector is not supported", what)
					}
				},
			})
			if h.Name == "" || h.Type == "" {
				p.problems.add(h.Pos, "", "an element of %s needs name and type", what)
			}
			*out = append(*out, h)
		}
	}})
}

func (p *docParser) features(n *yaml.Node, c *Configuration) {
	if n.Kind != yaml.SequenceNode {
		if !isNull(n) {
			p.problems.add(p.pos(n), "", "spec.features must be a list, not %s", describe(n))
		}
		return
	}
	for _, element := range n.Content {
		name, enabled := "", false
		if c.Features == nil {
			c.Features = []string{}
		}
		p.readFields(element, "an element of spec.features", fields{
			"name":    func(n *yaml.Node) { name = p.required(n, "spec.features: name") },
			"enabled": func(n *yaml.Node) { enabled = p.boolean(n, "spec.features: enabled") },
		})
		if enabled && name != "" {
			c.Features = append(c.Features, name)
		}
		if strings.EqualFold(name, "HotReload") {
			c.NoReload = !enabled
			continue
		}
		c.unused(p.pos(element), "the feature "+name+" of spec.features is not known here", "")
	}
}

// unused records a part of the document that has no effect.
func (c *Configuration) unused(at Pos, text, hint string) {
	c.Unused = append(c.Unused, Problem{Pos: at, Text: text, Hint: hint})
}
