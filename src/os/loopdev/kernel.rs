//! linux/loop.h

pub(super) const CONTROL: &str = "/dev/loop-control";

pub(super) const READ_ONLY: u32 = 1;
pub(super) const AUTOCLEAR: u32 = 4;
pub(super) const DIRECT_IO: u32 = 16;

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Info {
    pub device: u64,
    pub inode: u64,
    pub rdevice: u64,
    pub offset: u64,
    pub size_limit: u64,
    pub number: u32,
    pub encrypt_type: u32,
    pub encrypt_key_size: u32,
    pub flags: u32,
    pub file_name: [u8; 64],
    pub crypt_name: [u8; 64],
    pub encrypt_key: [u8; 32],
    pub init: [u64; 2],
}

impl Info {
    pub(super) const EMPTY: Info = Info {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
}

#[repr(C)]
pub(super) struct Config {
    pub fd: u32,
    pub block_size: u32,
    pub info: Info,
    pub reserved: [u64; 8],
}

const _: () = assert!(size_of::<Info>() == 232 && size_of::<Config>() == 304);

nix::ioctl_none_bad!(clear, 0x4C01);
nix::ioctl_write_ptr_bad!(set_status, 0x4C04, Info);
nix::ioctl_read_bad!(get_status, 0x4C05, Info);
nix::ioctl_none_bad!(set_capacity, 0x4C07);
nix::ioctl_write_ptr_bad!(configure, 0x4C0A, Config);
nix::ioctl_write_int_bad!(add, 0x4C80);
nix::ioctl_write_int_bad!(remove, 0x4C81);
nix::ioctl_none_bad!(get_free, 0x4C82);
