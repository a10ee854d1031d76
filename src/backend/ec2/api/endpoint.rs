//! Where AWS answers.

/// The services that are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    Ec2,
    /// The EBS direct APIs.
    Ebs,
}

impl Service {
    /// In hostnames and signatures.
    pub fn name(self) -> &'static str {
        match self {
            Service::Ec2 => "ec2",
            Service::Ebs => "ebs",
        }
    }

    /// The region's own endpoint (AWS General Reference, "Service endpoints").
    pub fn url(self, region: &str, fips: bool, dual_stack: bool) -> String {
        let (suffix, both) = match region.split('-').collect::<Vec<_>>()[..] {
            ["cn", ..] => ("amazonaws.com.cn", "api.amazonwebservices.com.cn"),
            ["us", "iso", ..] => ("c2s.ic.gov", "api.aws.ic.gov"),
            ["us", "isob", ..] => ("sc2s.sgov.gov", "api.aws.scloud"),
            ["eu", "isoe", ..] => ("cloud.adc-e.uk", "api.cloud-aws.adc-e.uk"),
            ["us", "isof", ..] => ("csp.hci.ic.gov", "api.aws.hci.ic.gov"),
            ["eusc", ..] => ("amazonaws.eu", "api.amazonwebservices.eu"),
            _ => ("amazonaws.com", "api.aws"),
        };
        let suffix = if dual_stack { both } else { suffix };
        let fips = if fips { "-fips" } else { "" };
        format!("https://{}{fips}.{region}.{suffix}", self.name())
    }
}

/// Endpoints in place of the region's own.
#[derive(Clone, Debug, Default)]
pub(super) struct Endpoint {
    pub ec2: Option<String>,
    pub ebs: Option<String>,
}

impl Endpoint {
    /// What is given, else what the environment says, as in all AWS SDKs.
    pub fn new(ec2: Option<String>, ebs: Option<String>) -> Endpoint {
        let variable = |name| std::env::var(name).ok().filter(|url| !url.is_empty());
        let every = variable("AWS_ENDPOINT_URL");
        Endpoint {
            ec2: ec2.or_else(|| variable("AWS_ENDPOINT_URL_EC2")).or_else(|| every.clone()),
            ebs: ebs.or_else(|| variable("AWS_ENDPOINT_URL_EBS")).or(every),
        }
    }

    pub fn of(&self, service: Service) -> Option<&str> {
        match service {
            Service::Ec2 => self.ec2.as_deref(),
            Service::Ebs => self.ebs.as_deref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_partition_has_its_own() {
        for (region, fips, dual_stack, url) in [
            ("eu-central-1", false, false, "https://ec2.eu-central-1.amazonaws.com"),
            ("us-gov-west-1", true, false, "https://ec2-fips.us-gov-west-1.amazonaws.com"),
            ("us-east-2", false, true, "https://ec2.us-east-2.api.aws"),
            ("cn-north-1", false, false, "https://ec2.cn-north-1.amazonaws.com.cn"),
            ("us-iso-east-1", false, false, "https://ec2.us-iso-east-1.c2s.ic.gov"),
            ("eusc-de-east-1", false, false, "https://ec2.eusc-de-east-1.amazonaws.eu"),
        ] {
            assert_eq!(Service::Ec2.url(region, fips, dual_stack), url);
        }
        assert_eq!(Service::Ebs.url("eu-west-1", false, false), "https://ebs.eu-west-1.amazonaws.com");
    }
}
